#include "src/comm/mpi_link.h"

#include <algorithm>
#include <array>
#include <thread>

namespace sluice {

Status mpi_status(int code, const std::string& what) {
  if (code == MPI_SUCCESS) return success();
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return fault(what + ": " + std::string(text.data(), static_cast<std::size_t>(length)));
}

void Pause::rest() {
  if (!is_idle()) {
    std::this_thread::yield();
    return;
  }
  using std::chrono::microseconds;
  const auto pause = std::chrono::duration_cast<microseconds>(waited()) / 32;
  std::this_thread::sleep_for(std::clamp(pause, microseconds(20), microseconds(1000)));
}

void Messages::add(MPI_Request request, int peer, Kind kind, std::size_t bytes) {
  requests_.push_back(request);
  peers_.push_back(peer);
  kinds_.push_back(kind);
  bytes_.push_back(bytes);
}

Status Messages::check_alarm(int peer) const {
  const Status lost = alarm_.check();
  return lost.ok() ? lost : Status(lost.error().in("waiting for rank " + std::to_string(peer)));
}

Status Messages::send(MPI_Comm comm, int to, int tag, std::span<const std::byte> data) {
  SLUICE_TRY(check_alarm(to));
  MPI_Request request;
  SLUICE_TRY(mpi_status(MPI_Isend(data.data(), static_cast<int>(data.size()), MPI_BYTE, to, tag, comm, &request),
                        "MPI_Isend"));
  add(request, to, Kind::send);
  return success();
}

Status Messages::receive(MPI_Comm comm, int from, int tag, std::span<std::byte> data) {
  SLUICE_TRY(check_alarm(from));
  MPI_Request request;
  SLUICE_TRY(mpi_status(MPI_Irecv(data.data(), static_cast<int>(data.size()), MPI_BYTE, from, tag, comm, &request),
                        "MPI_Irecv"));
  add(request, from, Kind::receive, data.size());
  return success();
}

Status Messages::receive(MPI_Message& message, int from, std::span<std::byte> data) {
  MPI_Request request;
  SLUICE_TRY(mpi_status(MPI_Imrecv(data.data(), static_cast<int>(data.size()), MPI_BYTE, &message, &request),
                        "MPI_Imrecv"));
  add(request, from, Kind::receive, data.size());
  return success();
}

void Alarm::raise(const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (is_raised()) return;
  text_ = text;
  raised_.store(true, std::memory_order_release);
}

Status Alarm::check() const { return is_raised() ? Status(fault(text_)) : success(); }

int Messages::awaited() const {
  const auto open = std::ranges::find_if(requests_, [](MPI_Request r) { return r != MPI_REQUEST_NULL; });
  return peers_[static_cast<std::size_t>(open - requests_.begin())];
}

Status Messages::finish(std::chrono::seconds deadline, const Interrupted& interrupted) {
  Pause pause;
  ended_.resize(requests_.size());
  statuses_.resize(requests_.size());
  std::size_t left = requests_.size();
  while (left > 0) {
    SLUICE_TRY(check_alarm(awaited()));
    int count = 0;
    SLUICE_TRY(mpi_status(MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, ended_.data(),
                                       statuses_.data()),
                          "MPI_Testsome"));
    if (count > 0) pause.moved();
    for (int i = 0; i < count; ++i) SLUICE_TRY(check_arrived(i));
    left -= static_cast<std::size_t>(std::max(count, 0));
    if (left == 0) break;
    if (pause.is_idle()) {
      if (interrupted) SLUICE_TRY(interrupted());
      if (pause.waited() > deadline)
        return fault("waited " + std::to_string(deadline.count()) + " s for rank " + std::to_string(awaited()) +
                     ", the deadline");
    }
    pause.rest();
  }
  clear();
  return success();
}

void Messages::clear() {
  requests_.clear();
  peers_.clear();
  kinds_.clear();
  bytes_.clear();
}

/// MPI takes a message that is shorter than its buffer for a whole one.
Status Messages::check_arrived(int ended) const {
  const auto which = static_cast<std::size_t>(ended_[static_cast<std::size_t>(ended)]);
  if (kinds_[which] != Kind::receive) return success();
  int bytes = 0;
  MPI_Get_count(&statuses_[static_cast<std::size_t>(ended)], MPI_BYTE, &bytes);
  if (static_cast<std::size_t>(bytes) == bytes_[which]) return success();
  return fault("rank " + std::to_string(peers_[which]) + " has sent " + std::to_string(bytes) + " bytes where " +
               std::to_string(bytes_[which]) + " were expected");
}

void Messages::abandon() {
  constexpr std::chrono::seconds patience(2);
  if (alarm_.is_raised()) clear();
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    if (kinds_[i] == Kind::collective) {
      clear();
      return alarm_.raise("a sum by MPI's own algorithm has begun, which can not be called off, so that nothing can go "
                          "on here");
    }
    if (kinds_[i] == Kind::send) {
      // It reads, which harms nobody: what it reads no one takes.
      MPI_Request_free(&requests_[i]);
      continue;
    }
    // One that has met its message ends as soon as that is here.
    MPI_Cancel(&requests_[i]);
    int ended = 0;
    for (Pause pause; ended == 0 && pause.waited() < patience; pause.rest())
      if (MPI_Test(&requests_[i], &ended, MPI_STATUS_IGNORE) != MPI_SUCCESS) break;
    if (ended == 0)
      return alarm_.raise("a message of rank " + std::to_string(peers_[i]) +
                          " has begun to arrive and does not end, so that nothing can go on here");
  }
  clear();
}

}  // namespace sluice
