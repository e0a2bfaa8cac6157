#include "io/files/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "io/files/os_error.h"

namespace sluice {

Result<MappedFile> MappedFile::open(const std::string& path, std::optional<uid_t> owner) {
  // Without O_NONBLOCK a named pipe would wait for its writer.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return os_error(fmt::format("can not open {}", path), errno);
  MappedFile file;
  std::string wrong;
  struct stat st {};
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    wrong = "is not a regular file";
  } else if (owner && ((st.st_uid != geteuid() && st.st_uid != *owner) || (st.st_mode & (S_IWGRP | S_IWOTH)) != 0)) {
    wrong = "may have been written by another user";
  } else if (st.st_size > 0) {
    void* map = mmap(nullptr, static_cast<std::size_t>(st.st_size), PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
      wrong = fmt::format("can not be mapped: {}", std::strerror(errno));
    } else {
      file.map_ = map;
      file.size_ = static_cast<std::size_t>(st.st_size);
    }
  }
  ::close(fd);
  if (!wrong.empty()) return bad_request(fmt::format("{} {}", path, wrong));
  return file;
}

MappedFile::~MappedFile() {
  if (map_ != nullptr) munmap(map_, size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this == &other) return *this;
  if (map_ != nullptr) munmap(map_, size_);
  map_ = std::exchange(other.map_, nullptr);
  size_ = std::exchange(other.size_, 0);
  return *this;
}

}  // namespace sluice
