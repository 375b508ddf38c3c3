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
  } catch (const Interrupted& e) {
    PyErr_SetString(PyExc_KeyboardInterrupt, e.what());
  } catch (const Error& e) {  // DeviceError
    PyErr_SetString(PyExc_RuntimeError, e.what());
  }
}

// nanobind keeps what it knows of types once for the whole process: in a subinterpreter it would
// take the main interpreter's away, and the next call there would crash.
bool in_main_interpreter() {
  if (PyInterpreterState_Get() == PyInterpreterState_Main()) return true;
  PyErr_SetString(PyExc_ImportError,
                  "attend works in Python's main interpreter only, this is a subinterpreter; "
                  "use threads, during every call of attend others run, or processes");
  return false;
}

int (*execute_module)(PyObject*) = nullptr;

int execute_in_main_interpreter(PyObject* module) {
  return in_main_interpreter() ? execute_module(module) : -1;
}

}  // namespace
}  // namespace attend::python

// The module as nanobind makes it, found as attend._attend by PyInit__attend.
NB_MODULE(attend_module, m) {
  using namespace attend::python;
  nanobind::set_leak_warnings(false);  // an array of another library may outlive the interpreter
  nanobind::register_exception_translator(translate);
  m.doc() = "The compiled part of attend.";
  m.def("version", attend::version, "The library's version, 'major.minor.patch'.");
  bind_context(m);
  bind_attention(m);
  bind_plan(m);
  bind_torch_calls(m);
  bind_cuda(m);
  bind_trace(m);
  bind_inspect(m);
  bind_files(m);
  bind_kv_cache(m);
  bind_layers(m);
  bind_multi_head(m);
  bind_block(m);
  bind_model(m);
  bind_train(m);
  bind_groups(m);
  bind_layouts(m);
  bind_distributed(m);
}

// From 3.13 on Python calls this in the main interpreter, whichever imports, and only what fills
// the module in its own: so both look.
extern "C" NB_EXPORT PyObject* PyInit__attend();
extern "C" PyObject* PyInit__attend() {
  using namespace attend::python;
  if (!in_main_interpreter()) return nullptr;
  PyObject* const made = PyInit_attend_module();
  if (made == nullptr || execute_module != nullptr) return made;
  for (PyModuleDef_Slot* slot = reinterpret_cast<PyModuleDef*>(made)->m_slots; slot->slot != 0;
       ++slot) {
    if (slot->slot != Py_mod_exec) continue;
    execute_module = reinterpret_cast<int (*)(PyObject*)>(slot->value);
    slot->value = reinterpret_cast<void*>(execute_in_main_interpreter);
  }
  return made;
}
