// What the operating system answered, as an error of ours.
#pragma once

#include <cerrno>
#include <cstring>
#include <string>

#include "sluice/status.h"

namespace sluice {

/// "`what`: No such file or directory". bad_request, as another name or place would do; a fault where the machine has
/// run out of something or a drive fails.
inline Error os_error(const std::string& what, int error) {
  const std::string text = what + ": " + std::strerror(error);
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EIO:
    case EMFILE:
    case ENFILE:
    case ENOMEM: return fault(text);
    default: return bad_request(text);
  }
}

/// "`path`: `call` failed: No such file or directory", by errno: a fault, whatever it is.
inline Error os_fault(const std::string& path, const char* call) {
  return fault(path + ": " + call + " failed: " + std::strerror(errno));
}

}  // namespace sluice
