// Which backend a queue gets, and why.
#include <fmt/format.h>

#include <iterator>

#include "io/backend.h"
#include "io/queue.h"

namespace sluice {

Result<IoBackendKind> parse_io_backend(const std::string& name) {
  for (std::size_t i = 0; i < std::size(io_backend_names); ++i)
    if (name == io_backend_names[i]) return static_cast<IoBackendKind>(i);
  return bad_request(fmt::format("I/O backend '{}' is not known: use auto, io_uring or threads", name));
}

Result<std::unique_ptr<IoQueue>> make_queue(const QueueOptions& options) {
  if (options.depth == 0 || options.depth > 4096)
    return bad_request(fmt::format("I/O depth {} is not between 1 and 4096", options.depth));
  BackendOptions backend{options.files, options.buffers, options.depth, options.threads};
  MadeBackend made;
  std::string why;
  if (options.backend != IoBackendKind::threads) {
    auto uring = make_uring_backend(backend);
    if (uring.ok()) {
      made = std::move(uring).value();
    } else if (options.backend == IoBackendKind::io_uring) {
      return bad_request(uring.error().message + ": use the threads backend");
    } else {
      why = fmt::format(" ({})", uring.error().message);
    }
  }
  if (made.backend == nullptr) {
    SLUICE_ASSIGN(made, make_threads_backend(backend));
  }
  if (options.faults)
    made.backend = make_fault_backend(std::move(made.backend), *options.faults, options.files, options.depth);
  std::string description =
      fmt::format("{}, depth {}{}{}", made.description, options.depth, why, options.faults ? ", injected faults" : "");
  return std::make_unique<IoQueue>(std::move(made.backend), options.files, options.depth, std::move(description));
}

}  // namespace sluice
