// Version, statuses, and the last error of each thread.
#include "c_api/call.h"

#include <new>

namespace attend::c_api {
namespace {

thread_local std::string last_message;
thread_local const char* last_error = "";

// Also when there is no memory for the text.
attend_status remember(attend_status status, const char* function, const char* what) noexcept {
  try {
    last_message = function == nullptr ? std::string(what) : text(function, ": ", what);
    last_error = last_message.c_str();
  } catch (...) {
    last_error = "out of memory, also for the message";
  }
  return status;
}

}  // namespace

attend_status report(const char* function) noexcept {
  try {
    throw;
  } catch (const InvalidArgument& error) {
    return remember(ATTEND_INVALID_ARGUMENT, nullptr, error.what());
  } catch (const Unsupported& error) {
    return remember(ATTEND_UNSUPPORTED, nullptr, error.what());
  } catch (const OutOfMemory& error) {
    return remember(ATTEND_OUT_OF_MEMORY, nullptr, error.what());
  } catch (const FileError& error) {
    return remember(ATTEND_FILE_ERROR, nullptr, error.what());
  } catch (const DeviceError& error) {
    return remember(ATTEND_DEVICE_ERROR, nullptr, error.what());
  } catch (const Interrupted& error) {
    return remember(ATTEND_INTERRUPTED, nullptr, error.what());
  } catch (const std::bad_alloc&) {
    return remember(ATTEND_OUT_OF_MEMORY, function, "out of memory");
  } catch (const std::exception& error) {
    return remember(ATTEND_INTERNAL_ERROR, function, error.what());
  } catch (...) {
    return remember(ATTEND_INTERNAL_ERROR, function, "an exception that is no std::exception");
  }
}

}  // namespace attend::c_api

const char* attend_version() { return attend::version(); }

const char* attend_status_name(attend_status status) {
  switch (status) {
    case ATTEND_OK: return "ok";
    case ATTEND_INVALID_ARGUMENT: return "invalid_argument";
    case ATTEND_UNSUPPORTED: return "unsupported";
    case ATTEND_OUT_OF_MEMORY: return "out_of_memory";
    case ATTEND_FILE_ERROR: return "file_error";
    case ATTEND_DEVICE_ERROR: return "device_error";
    case ATTEND_INTERNAL_ERROR: return "internal_error";
    case ATTEND_INTERRUPTED: return "interrupted";
    default: return "unknown status";
  }
}

const char* attend_last_error() { return attend::c_api::last_error; }
