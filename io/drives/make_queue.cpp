// Which backend a queue gets, and why.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "io/drives/backend.h"
#include "io/drives/queue.h"

namespace sluice {

Result<IoBackendKind> parse_io_backend(const std::string& name) {
  for (std::size_t i = 0; i < std::size(io_backend_names); ++i)
    if (name == io_backend_names[i]) return static_cast<IoBackendKind>(i);
  return bad_request(fmt::format("I/O backend '{}' is not known: use auto, io_uring, libaio or threads", name));
}

namespace {

using Make = Result<MadeBackend> (*)(const BackendOptions&);
struct Candidate {
  IoBackendKind kind;
  Make make;
};
constexpr Candidate candidates[] = {{IoBackendKind::io_uring, make_uring_backend},
                                    {IoBackendKind::libaio, make_libaio_backend},
                                    {IoBackendKind::threads, make_threads_backend}};

/// The one that was asked for, or the first that works here, with the reasons of those passed over.
Result<MadeBackend> choose(IoBackendKind wanted, const BackendOptions& options) {
  const bool all_direct = std::all_of(options.files.begin(), options.files.end(),
                                      [](const IoFile& file) { return file.alignment_bytes > 1; });
  std::string why;
  for (const Candidate& candidate : candidates) {
    const char* const name = io_backend_names[static_cast<std::size_t>(candidate.kind)];
    if (wanted != IoBackendKind::automatic && wanted != candidate.kind) continue;
    if (wanted == IoBackendKind::automatic && candidate.kind == IoBackendKind::libaio && !all_direct) {
      why += "; libaio would block: a file is buffered";
      continue;
    }
    auto made = candidate.make(options);
    if (made.ok()) {
      if (!why.empty()) made->description += fmt::format(" ({})", why.substr(2));
      return made;
    }
    if (wanted != IoBackendKind::automatic)
      return bad_request(
          fmt::format("{}: {}", made.error().message,
                      options.iopoll ? "leave out iopoll" : fmt::format("choose another I/O backend than {}", name)));
    why += "; " + made.error().message;
  }
  return bad_request("no I/O backend works here: " + why.substr(2));
}

}  // namespace

Result<std::unique_ptr<IoQueue>> make_queue(const QueueOptions& options) {
  if (options.depth == 0 || options.depth > 4096)
    return bad_request(fmt::format("I/O depth {} is not between 1 and 4096", options.depth));
  const std::size_t capacity = options.depth * std::max<std::size_t>(1, options.files.size()) * 2;
  const BackendOptions backend{options.files,   options.buffers, capacity,
                               options.threads, options.sqpoll,  options.iopoll};
  // Kernel polling is io_uring's: asking for it asks for io_uring.
  IoBackendKind kind = options.backend;
  if (options.sqpoll || options.iopoll) {
    if (kind != IoBackendKind::automatic && kind != IoBackendKind::io_uring)
      return bad_request("sqpoll and iopoll are of the io_uring backend: choose it, or leave them out");
    kind = IoBackendKind::io_uring;
  }
  SLUICE_ASSIGN(MadeBackend made, choose(kind, backend));
  if (options.faults)
    made.backend = make_fault_backend(std::move(made.backend), *options.faults, options.files, capacity);
  std::string description =
      fmt::format("{}, depth {}{}", made.description, options.depth, options.faults ? ", injected faults" : "");
  return std::make_unique<IoQueue>(std::move(made.backend), options.files, options.depth, std::move(description));
}

}  // namespace sluice
