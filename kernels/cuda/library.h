// Libraries of the CUDA toolkit that are opened when they are first needed, so that programs start where they are not
// installed, and a program that is carried to another machine does not have to carry them.
#pragma once

#include <string>
#include <vector>

#include "sluice/status.h"

namespace sluice::kernels::cuda {

/// A shared library, open until the program ends: those of CUDA have threads and exit handlers of their own.
class Library {
 public:
  /// The first of `files` that the loader finds; names without a slash are looked for where it always looks
  /// (LD_LIBRARY_PATH, the system's directories). The error names all of them.
  static Result<Library> open(const std::vector<std::string>& files);

  /// Makes `function` point to the library's function of that name.
  template <class Function>
  Status find(const char* name, Function*& function) const {
    SLUICE_ASSIGN(void* const address, symbol(name));
    function = reinterpret_cast<Function*>(address);
    return success();
  }

 private:
  explicit Library(void* handle) : handle_(handle) {}
  Result<void*> symbol(const char* name) const;
  void* handle_;
};

}  // namespace sluice::kernels::cuda
