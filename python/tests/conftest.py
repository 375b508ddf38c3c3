"""What all tests of the package share."""
import hypothesis

# The same examples every time: a failure is the same tomorrow and elsewhere.
hypothesis.settings.register_profile("attend", deadline=None, derandomize=True, max_examples=60)
hypothesis.settings.load_profile("attend")
