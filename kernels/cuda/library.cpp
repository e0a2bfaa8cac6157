#include "kernels/cuda/library.h"

#include <dlfcn.h>

namespace sluice::kernels::cuda {

Result<Library> Library::open(const std::vector<std::string>& files) {
  std::string why;
  for (const std::string& file : files) {
    if (void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) return Library(handle);
    why += (why.empty() ? "" : "; ") + std::string(dlerror());
  }
  return fault("cannot open a library of CUDA: " + why + "; install it or add its directory to LD_LIBRARY_PATH");
}

Result<void*> Library::symbol(const char* name) const {
  void* address = dlsym(handle_, name);
  if (address == nullptr) return fault(std::string("a library of CUDA is too old: ") + dlerror());
  return address;
}

}  // namespace sluice::kernels::cuda
