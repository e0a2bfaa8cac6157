// The program's own definitions of these go before the C library's, also for the libraries that it loads.
#include "tests/system_calls/system_calls.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <filesystem>
#include <mutex>

namespace sluice::test {
namespace {

struct Watched {
  std::mutex mutex;
  std::atomic<bool> on = false;
  FailingCall failing;
  std::uint64_t counted = 0;
  std::vector<SystemCall> made;
};
Watched& watched() {
  static Watched& w = *new Watched;  // calls go on until the program ends
  return w;
}

std::string path_of(int fd) {
  char path[PATH_MAX];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t n = readlink(link.c_str(), path, sizeof path);
  return n > 0 ? std::string(path, static_cast<std::size_t>(n)) : std::string();
}

std::string text_of(const char* path) { return path == nullptr ? std::string() : std::string(path); }

/// The error that this call is to fail with, or 0; then it is made, and told of with done().
template <class PathOf>
int fails(const char* name, const PathOf& path_of_it) {
  Watched& w = watched();
  if (!w.on) return 0;
  const std::string path = path_of_it();
  const std::lock_guard lock(w.mutex);
  const FailingCall& f = w.failing;
  const bool counts = f.nth > 0 && (f.names.empty() || std::ranges::find(f.names, name) != f.names.end()) &&
                      path.find(f.within) != std::string::npos;
  if (!counts || ++w.counted != f.nth) return 0;
  if (f.error == FailingCall::kills) kill(getpid(), SIGKILL);
  return f.error;
}
void done(const char* name, std::string path, std::string to = {}) {
  Watched& w = watched();
  const int kept = errno;
  for (std::string* const p : {&path, &to})
    if (!p->empty())
      *p = std::filesystem::weakly_canonical(std::filesystem::path(*p).parent_path()) /
           std::filesystem::path(*p).filename();
  const std::lock_guard lock(w.mutex);
  if (w.on) w.made.push_back({name, std::move(path), std::move(to)});
  errno = kept;
}

/// The C library's.
template <class Function>
Function real(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

template <class PathOf, class Call>
int watch(const char* name, const PathOf& path, Call call, const char* to = "") {
  if (const int error = fails(name, path); error != 0) {
    errno = error;
    return -1;
  }
  const int result = call();
  if (result == 0 && watched().on) done(name, path(), to);
  return result;
}

template <class Call>
int watch_open(const char* path, int flags, Call call) {
  const bool makes = (flags & O_CREAT) != 0;
  if (const int error = makes ? fails("open", [&] { return text_of(path); }) : 0; error != 0) {
    errno = error;
    return -1;
  }
  const int fd = call();
  if (fd >= 0 && makes && watched().on) done("open", path_of(fd));
  return fd;
}

template <class Call>
ssize_t watch_write(int fd, Call call) {
  if (const int error = fails("write", [&] { return path_of(fd); }); error != 0) {
    errno = error;
    return -1;
  }
  const ssize_t n = call();
  if (n > 0 && watched().on) done("write", path_of(fd));
  return n;
}

}  // namespace

SystemCalls::SystemCalls(FailingCall failing) {
  Watched& w = watched();
  const std::lock_guard lock(w.mutex);
  w.on = true;
  w.failing = std::move(failing);
  w.counted = 0;
  w.made.clear();
}
SystemCalls::~SystemCalls() {
  const std::lock_guard lock(watched().mutex);
  watched().on = false;
}
bool SystemCalls::has_failed() const {
  const std::lock_guard lock(watched().mutex);
  return watched().failing.nth > 0 && watched().counted >= watched().failing.nth;
}
std::vector<SystemCall> SystemCalls::made() const {
  const std::lock_guard lock(watched().mutex);
  return watched().made;
}

}  // namespace sluice::test

// NOLINTBEGIN(cert-dcl50-cpp,readability-inconsistent-declaration-parameter-name)
using namespace sluice::test;  // NOLINT(google-build-using-namespace): of what this file has for them

extern "C" {

int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  static const auto next = real<int (*)(const char*, int, ...)>("open");
  return watch_open(path, flags, [&] { return next(path, flags, mode); });
}
int open64(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  static const auto next = real<int (*)(const char*, int, ...)>("open64");
  return watch_open(path, flags, [&] { return next(path, flags, mode); });
}
int mkostemp(char* name, int flags) {
  static const auto next = real<int (*)(char*, int)>("mkostemp");
  return watch_open(name, flags | O_CREAT, [&] { return next(name, flags); });
}
char* mkdtemp(char* name) noexcept {
  static const auto next = real<char* (*)(char*)>("mkdtemp");
  if (const int error = fails("make", [&] { return text_of(name); }); error != 0) {
    errno = error;
    return nullptr;
  }
  char* const made = next(name);
  if (made != nullptr && watched().on) done("make", text_of(made));
  return made;
}
int mkdir(const char* path, mode_t mode) noexcept {
  static const auto next = real<int (*)(const char*, mode_t)>("mkdir");
  return watch(
      "make", [&] { return text_of(path); }, [&] { return next(path, mode); });
}
int fsync(int fd) {
  static const auto next = real<int (*)(int)>("fsync");
  return watch(
      "fsync", [&] { return path_of(fd); }, [&] { return next(fd); });
}
int fdatasync(int fd) {
  static const auto next = real<int (*)(int)>("fdatasync");
  return watch(
      "fsync", [&] { return path_of(fd); }, [&] { return next(fd); });
}
int posix_fallocate(int fd, off_t offset, off_t bytes) {
  static const auto next = real<int (*)(int, off_t, off_t)>("posix_fallocate");
  if (const int error = fails("allocate", [&] { return path_of(fd); }); error != 0) return error;
  const int error = next(fd, offset, bytes);
  if (error == 0 && watched().on) done("allocate", path_of(fd));
  return error;
}
int rename(const char* from, const char* to) noexcept {
  static const auto next = real<int (*)(const char*, const char*)>("rename");
  return watch(
      "rename", [&] { return text_of(from); }, [&] { return next(from, to); }, to);
}
int renameat2(int from_at, const char* from, int to_at, const char* to, unsigned flags) noexcept {
  static const auto next = real<int (*)(int, const char*, int, const char*, unsigned)>("renameat2");
  return watch(
      "rename", [&] { return text_of(from); }, [&] { return next(from_at, from, to_at, to, flags); }, to);
}
int unlink(const char* path) noexcept {
  static const auto next = real<int (*)(const char*)>("unlink");
  return watch(
      "unlink", [&] { return text_of(path); }, [&] { return next(path); });
}
int unlinkat(int at, const char* path, int flags) noexcept {
  static const auto next = real<int (*)(int, const char*, int)>("unlinkat");
  return watch(
      "unlink", [&] { return at == AT_FDCWD ? text_of(path) : path_of(at) + "/" + text_of(path); },
      [&] { return next(at, path, flags); });
}
ssize_t write(int fd, const void* data, size_t bytes) {
  static const auto next = real<ssize_t (*)(int, const void*, size_t)>("write");
  return watch_write(fd, [&] { return next(fd, data, bytes); });
}
ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  static const auto next = real<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite");
  return watch_write(fd, [&] { return next(fd, data, bytes, offset); });
}
ssize_t pwrite64(int fd, const void* data, size_t bytes, off64_t offset) {
  static const auto next = real<ssize_t (*)(int, const void*, size_t, off64_t)>("pwrite64");
  return watch_write(fd, [&] { return next(fd, data, bytes, offset); });
}

}  // extern "C"
// NOLINTEND(cert-dcl50-cpp,readability-inconsistent-declaration-parameter-name)
