// Groups of ranks: of Python's making (mpi4py, for example), and threads of this process.
#include "arrays.h"
#include "bindings.h"

#include <attend/distributed.h>

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace attend::python {
namespace {

using namespace nb::literals;
using distributed::Group;
using distributed::PeerError;
using distributed::Pending;
using distributed::ThreadGroup;

nb::object shown(const std::byte* bytes, std::size_t size, int flag) {
  static char nothing = 0;  // Python shows no null
  void* const at = size > 0 ? const_cast<std::byte*>(bytes) : static_cast<void*>(&nothing);
  return nb::steal(
      PyMemoryView_FromMemory(static_cast<char*>(at), static_cast<Py_ssize_t>(size), flag));
}

// What Python raised: a PeerError is the library's own again, anything else goes on as it is.
[[noreturn]] void pass_on(nb::python_error& error) {
  const nb::object type = nb::module_::import_("attend._attend").attr("PeerError");
  if (error.matches(type)) throw PeerError(string_of(error.value()));
  throw error;
}

// Where an error does not matter, Ctrl-C does, and what else is no Exception.
void pass_on_signals(nb::python_error& error) {
  if (!error.matches(PyExc_Exception)) throw error;
}

// A transfer that Python moves. It is destroyed with the GIL, which the call does not hold.
class PythonPending final : public Pending {
 public:
  explicit PythonPending(nb::object transfer) : transfer_(std::move(transfer)) {}
  ~PythonPending() override {
    const nb::gil_scoped_acquire locked;
    transfer_.reset();
  }

  bool poll() override {
    if (done_) return true;
    const nb::gil_scoped_acquire locked;
    try {
      done_ = nb::cast<bool>(transfer_.attr("poll")());
    } catch (nb::python_error& error) {
      pass_on(error);
    } catch (const nb::cast_error&) {
      raise_type_error("distributed: poll() of a transfer returns True or False");
    }
    return done_;
  }

  bool moves() const override {
    const nb::gil_scoped_acquire locked;
    bool known = false;
    if (!nb::hasattr(transfer_, "moves")) return false;
    try {
      nb::try_cast(transfer_.attr("moves")(), known);
    } catch (nb::python_error& error) {  // it is for the pauses of a wait only
      pass_on_signals(error);
    }
    return known;
  }

  std::vector<int> missing() const override {
    const nb::gil_scoped_acquire locked;
    std::vector<int> ranks;
    if (!nb::hasattr(transfer_, "missing")) return ranks;
    try {
      nb::try_cast(transfer_.attr("missing")(), ranks);
    } catch (nb::python_error& error) {  // it is for a message only
      pass_on_signals(error);
    }
    return ranks;
  }

 private:
  nb::object transfer_;
  bool done_ = false;
};

// The C++ half of a Group whose functions are Python's: of a class derived from attend's Group.
class PythonGroup final : public Group {
 public:
  PythonGroup(int rank, int size) : rank_(rank), size_(size) {
    if (size < 1 || rank < 0 || rank >= size)
      throw InvalidArgument("Group: rank is " + std::to_string(rank) + " of " +
                            std::to_string(size) + "; it is from 0 to size - 1");
  }
  // Whoever moves the bytes may still know this memory: nobody could tell it that it is gone.
  ~PythonGroup() override {
    if (!failure().empty()) new auto(take_kept());
  }
  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }

  std::unique_ptr<Pending> exchange(std::span<const std::span<const std::byte>> send,
                                    std::span<const std::span<std::byte>> receive) override {
    const nb::gil_scoped_acquire locked;
    nb::list sent, received;
    for (const auto& bytes : send) sent.append(shown(bytes.data(), bytes.size(), PyBUF_READ));
    for (const auto& bytes : receive)
      received.append(shown(bytes.data(), bytes.size(), PyBUF_WRITE));
    return started([&](nb::handle self) { return self.attr("exchange")(sent, received); });
  }
  std::unique_ptr<Pending> broadcast(int root, std::span<std::byte> bytes) override {
    const nb::gil_scoped_acquire locked;
    const nb::object memory = shown(bytes.data(), bytes.size(), PyBUF_WRITE);
    return started([&](nb::handle self) { return self.attr("broadcast")(root, memory); });
  }

 private:
  template <class Start>
  std::unique_ptr<Pending> started(const Start& start) {
    try {
      return std::make_unique<PythonPending>(start(nb::find(static_cast<Group*>(this))));
    } catch (nb::python_error& error) {
      pass_on(error);
    }
  }

  int rank_, size_;
};

[[noreturn]] nb::object not_there(const char* name) {
  PyErr_Format(PyExc_NotImplementedError, "Group: a class derived from it defines %s()", name);
  throw nb::python_error();
}

}  // namespace

void bind_groups(nb::module_& m) {
  nb::exception<PeerError>(m, "PeerError", PyExc_RuntimeError).attr("__doc__") =
      "Another rank did not answer in time, is gone, or has given up. The Group takes no more "
      "calls.";

  nb::class_<Group, PythonGroup>(m, "Group", nb::is_weak_referenceable(),
                                 R"(Some ranks, and how bytes move between them.

A class derived from it has two methods, which start a transfer and return an object with poll():
True once it is done; and, if it knows, missing(): the ranks from which something is still to come,
and moves(): whether large messages are on their way, so that there is no pause between two polls.
What these two raise does not matter, unless it is no Exception, as KeyboardInterrupt.
Every rank starts the same transfers in the same order, the next perhaps before the last is done.

exchange(send, receive)   lists of `size` memoryviews of bytes: send[r] goes to rank r, which fills
                          its receive[this rank]; often of 0 bytes, and so are those of this rank
broadcast(root, bytes)    the bytes of rank `root` to all

The memory is valid until the transfer is done.
)")
      .def(nb::init<int, int>(), "rank"_a, "size"_a)
      .def_prop_ro("rank", &Group::rank, "This process's number, from 0 to size - 1.")
      .def_prop_ro("size", &Group::size, "How many ranks there are.")
      .def_prop_ro("failure", &Group::failure, "Why it takes no more calls; empty: it does.")
      .def_prop_ro(
          "waited",
          [](const Group& group) { return std::chrono::duration<double>(group.waited()).count(); },
          "Seconds that calls have waited for other ranks with nothing else to do.")
      .def(
          "exchange", [](Group&, nb::handle, nb::handle) { not_there("exchange"); }, "send"_a,
          "receive"_a,
          nb::sig("def exchange(self, send: Sequence[memoryview], receive: Sequence[memoryview]) "
                  "-> Any"),
          "Starts an exchange of all ranks with all; of a class derived from this.")
      .def(
          "broadcast", [](Group&, nb::handle, nb::handle) { not_there("broadcast"); }, "root"_a,
          "bytes"_a, nb::sig("def broadcast(self, root: int, bytes: memoryview) -> Any"),
          "Starts a broadcast; of a class derived from this.");

  nb::class_<ThreadGroup>(m, "ThreadRanks", "Ranks that are threads of this process.")
      .def(
          "__init__",
          [](ThreadGroup* self, int size) {
            if (size < 1)
              throw InvalidArgument("ThreadGroup: size is " + std::to_string(size) +
                                    "; it is at least 1");
            new (self) ThreadGroup(size);
          },
          "size"_a)
      .def("rank", &ThreadGroup::rank, "rank"_a, nb::rv_policy::reference_internal,
           "The Group of one of them.")
      .def("bytes_sent", &ThreadGroup::bytes_sent, "rank"_a,
           "Bytes that this rank has sent to others.");
}

}  // namespace attend::python
