// The module attend._attend: its parts, and the library's errors as Python's.
#include "bindings.h"

#include <attend/error.h>
#include <attend/version.h>

namespace attend::python {
namespace {

void translate(const std::exception_ptr& error, void*) {
  try {
    std::rethrow_exception(error);
  } catch (const InvalidArgument& e) {
    PyErr_SetString(PyExc_ValueError, e.what());
  } catch (const Unsupported& e) {
    PyErr_SetString(PyExc_NotImplementedError, e.what());
  } catch (const OutOfMemory& e) {
    PyErr_SetString(PyExc_MemoryError, e.what());
  } catch (const FileError& e) {
    PyErr_SetString(PyExc_OSError, e.what());
  } catch (const Error& e) {  // DeviceError
    PyErr_SetString(PyExc_RuntimeError, e.what());
  }
}

}  // namespace
}  // namespace attend::python

NB_MODULE(_attend, m) {
  using namespace attend::python;
  nanobind::register_exception_translator(translate);
  m.doc() = "The compiled part of attend.";
  m.def("version", attend::version, "The library's version, 'major.minor.patch'.");
  bind_context(m);
  bind_attention(m);
  bind_plan(m);
  bind_trace(m);
  bind_inspect(m);
  bind_files(m);
  bind_kv_cache(m);
  bind_layers(m);
  bind_multi_head(m);
  bind_block(m);
  bind_model(m);
  bind_train(m);
}
