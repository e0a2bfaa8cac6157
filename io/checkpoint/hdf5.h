// Handles of the HDF5 library that close themselves. Its calls are made by one thread of a process at a time.
#pragma once

#include <hdf5.h>

#include <mutex>
#include <utility>

namespace sluice {

/// Held while the library is used: it knows no threads.
std::unique_lock<std::mutex> use_hdf5();

/// Move-only. What closes it depends on what it is.
class H5Handle {
 public:
  using Close = herr_t (*)(hid_t);
  H5Handle(hid_t id, Close how) : id_(id), close_(how) {}
  ~H5Handle() { static_cast<void>(close()); }
  H5Handle(H5Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  H5Handle& operator=(H5Handle&&) = delete;
  bool ok() const { return id_ >= 0; }
  hid_t id() const { return id_; }
  bool close() { return id_ < 0 || close_(std::exchange(id_, -1)) >= 0; }

 private:
  hid_t id_;
  Close close_;
};

/// bfloat16, which HDF5 has no name for: h5py reads it as float32.
H5Handle h5_bf16();

}  // namespace sluice
