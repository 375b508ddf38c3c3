// Nothing: the target of this file precompiles the headers that all tests include.
