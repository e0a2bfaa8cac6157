#include "src/comm/lifeline.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <random>

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds connect_within(20);

std::int64_t whole_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(Clock::now().time_since_epoch()).count();
}

std::string reason() { return std::strerror(errno); }

/// Where the first process can be reached.
struct Address {
  std::uint32_t ip = 0;  ///< as the network has it
  std::uint16_t port = 0, reserved = 0;
};

/// Who connects, with the number that only processes of this run know.
struct Hello {
  std::uint64_t key = 0;
  std::uint64_t rank = 0;
};

std::vector<std::uint32_t> own_addresses(bool one_machine) {
  std::vector<std::uint32_t> found;
  ifaddrs* list = nullptr;
  if (!one_machine && getifaddrs(&list) == 0) {
    for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
      if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET || (each->ifa_flags & IFF_LOOPBACK)) continue;
      found.push_back(reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr.s_addr);
    }
    freeifaddrs(list);
  }
  found.push_back(htonl(INADDR_LOOPBACK));
  return found;
}

bool send_all(int fd, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = ::send(fd, at, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent;
    bytes -= static_cast<std::size_t>(sent);
  }
  return true;
}

bool receive_all(int fd, void* data, std::size_t bytes, std::chrono::milliseconds within) {
  const timeval limit{within.count() / 1000, within.count() % 1000 * 1000};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  return ::recv(fd, data, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes);
}

/// -1 where nobody answers in time.
int connect_to(const Address& address, std::chrono::milliseconds within) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = address.ip;
  to.sin_port = address.port;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) {
    pollfd waits{fd, POLLOUT, 0};
    int error = EINPROGRESS;
    socklen_t size = sizeof error;
    const bool answered = errno == EINPROGRESS && poll(&waits, 1, static_cast<int>(within.count())) == 1 &&
                          getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
    if (!answered) {
      close(fd);
      return -1;
    }
  }
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
  return fd;
}

}  // namespace

/// What is said every second. From the first process the counts of all ranks follow.
struct Lifeline::Beat {
  enum Kind : std::uint32_t { alive, leaves, lost } kind = alive;
  std::uint32_t rank = 0;      ///< that is lost, or whose count it is
  std::uint64_t meetings = 0;  ///< of that rank
  std::array<char, 112> how{};
};

Lifeline::Lifeline(Options options)
    : options_(std::move(options)), meetings_(options_.ranks), seen_(options_.ranks), wake_(eventfd(0, EFD_CLOEXEC)) {
  for (Seen& seen : seen_) seen.since = whole_seconds();
}

Result<std::unique_ptr<Lifeline>> Lifeline::connect(const Options& options, const Exchange& exchange) {
  std::unique_ptr<Lifeline> line(new Lifeline(options));
  SLUICE_TRY(options.rank == 0 ? line->listen_for_others(exchange) : line->reach_first(exchange));
  for (const Peer& peer : line->peers_) {
    // A peer that takes nothing any more must not hold the thread up.
    const timeval limit{1, 0};
    setsockopt(peer.fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    const int on = 1;
    setsockopt(peer.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  return line;
}

void Lifeline::start() {
  for (Peer& peer : peers_) peer.heard = Clock::now();
  thread_ = std::thread([this] { run(); });
}

Status Lifeline::listen_for_others(const Exchange& exchange) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(options_.one_machine ? INADDR_LOOPBACK : INADDR_ANY);
  socklen_t size = sizeof own;
  const bool listens = bind(listener, reinterpret_cast<const sockaddr*>(&own), sizeof own) == 0 &&
                       listen(listener, options_.ranks) == 0 &&
                       getsockname(listener, reinterpret_cast<sockaddr*>(&own), &size) == 0;
  std::random_device random;
  const std::uint64_t key = std::uint64_t{random()} << 32 | random();
  std::string text(reinterpret_cast<const char*>(&key), sizeof key);
  for (const std::uint32_t ip : own_addresses(options_.one_machine)) {
    const Address address{ip, own.sin_port, 0};
    text.append(reinterpret_cast<const char*>(&address), sizeof address);
  }
  const auto told = exchange(listens ? text : "");
  Status status = told.ok() ? success() : Status(told.error());
  if (status.ok() && !listens) status = fault("rank 0 can not listen for the other ranks: " + reason());
  const Clock::time_point until = Clock::now() + connect_within;
  while (status.ok() && peers_.size() + 1 < options_.ranks) {
    pollfd waits{listener, POLLIN, 0};
    if (Clock::now() > until || poll(&waits, 1, 1000) < 0) {
      status = bad_request(std::to_string(options_.ranks - 1 - peers_.size()) +
                           " ranks could not reach rank 0 over the network; let them connect to it by TCP");
      break;
    }
    if (waits.revents == 0) continue;
    const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    Hello hello;
    const bool is_ours = fd >= 0 && receive_all(fd, &hello, sizeof hello, std::chrono::seconds(2)) && hello.key == key &&
                         hello.rank < options_.ranks;
    if (is_ours)
      peers_.push_back({static_cast<RankId>(hello.rank), fd, {}, {}, false});
    else if (fd >= 0)
      close(fd);
  }
  close(listener);
  return status;
}

Status Lifeline::reach_first(const Exchange& exchange) {
  SLUICE_ASSIGN(const std::vector<std::string> texts, exchange(""));
  const std::string& told = texts.front();
  if (told.empty()) return fault("rank 0 can not listen for the other ranks");
  Hello hello{0, options_.rank};
  std::memcpy(&hello.key, told.data(), sizeof hello.key);
  for (std::size_t at = sizeof hello.key; at < told.size(); at += sizeof(Address)) {
    Address address;
    std::memcpy(&address, told.data() + at, sizeof address);
    const int fd = connect_to(address, std::chrono::seconds(3));
    if (fd < 0) continue;
    if (send_all(fd, &hello, sizeof hello)) {
      peers_.push_back({0, fd, {}, {}, false});
      return success();
    }
    close(fd);
  }
  return bad_request("rank 0 can not be reached over the network; let the other ranks connect to it by TCP");
}

Lifeline::~Lifeline() {
  ends_ = true;
  const std::uint64_t one = 1;
  static_cast<void>(!write(wake_, &one, sizeof one));
  if (thread_.joinable()) thread_.join();
  for (Peer& peer : peers_)
    if (peer.fd >= 0) close(peer.fd);
  close(wake_);
}

std::chrono::seconds Lifeline::idle(RankId rank) const {
  return std::chrono::seconds(whole_seconds() - seen_[rank].since.load());
}

void Lifeline::run() {
  Clock::time_point next = Clock::now();
  while (!ends_ && !is_lost_) {
    if (Clock::now() >= next) {
      send_beats();
      next = Clock::now() + options_.beat;
    }
    std::vector<pollfd> waits{{wake_, POLLIN, 0}};
    for (const Peer& peer : peers_) waits.push_back({peer.fd, POLLIN, 0});
    const Clock::time_point before = Clock::now();
    const auto pause = std::chrono::duration_cast<std::chrono::milliseconds>(next - before).count();
    poll(waits.data(), waits.size(), static_cast<int>(std::clamp<std::int64_t>(pause, 0, options_.beat.count())));
    // A job that was stopped as a whole has heard nobody because it did not listen.
    if (Clock::now() - before > 4 * options_.beat)
      for (Peer& peer : peers_) peer.heard = Clock::now();
    for (std::size_t i = 0; i < peers_.size() && !is_lost_; ++i)
      if (waits[i + 1].revents != 0) read_from(peers_[i]);
    for (const Peer& peer : peers_) {
      if (is_lost_ || Clock::now() - peer.heard < options_.patience) continue;
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(options_.patience).count();
      lose(peer.rank, peer.has_left ? "it has ended, and others go on"
                                    : "it has given no sign of life for " + std::to_string(seconds) + " s");
    }
  }
  if (is_lost_ || !leaves_) return;
  Beat beat;
  beat.kind = Beat::leaves;
  for (Peer& peer : peers_)
    if (peer.fd >= 0) send_all(peer.fd, &beat, sizeof beat);
}

void Lifeline::send_beats() {
  const auto beat_of = [&](RankId rank) {
    Beat beat;
    beat.rank = rank;
    beat.meetings = meetings_[rank].load(std::memory_order_relaxed);
    return beat;
  };
  std::vector<Beat> beats;
  for (RankId rank = 0; rank < options_.ranks; ++rank)
    if (rank == options_.rank || options_.rank == 0) beats.push_back(beat_of(rank));
  for (const Beat& beat : beats) take(beat);
  // Who takes nothing any more is silent soon.
  for (Peer& peer : peers_)
    if (peer.fd >= 0) send_all(peer.fd, beats.data(), beats.size() * sizeof(Beat));
}

void Lifeline::read_from(Peer& peer) {
  std::array<char, 4096> buffer;
  const ssize_t count = ::recv(peer.fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count <= 0) return lose(peer.rank, "its process has ended");
  peer.heard = Clock::now();
  peer.received.append(buffer.data(), static_cast<std::size_t>(count));
  while (peer.fd >= 0 && !is_lost_ && peer.received.size() >= sizeof(Beat)) {
    Beat beat;
    std::memcpy(&beat, peer.received.data(), sizeof beat);
    peer.received.erase(0, sizeof beat);
    if (beat.kind == Beat::leaves) return leave(peer);
    beat.how.back() = 0;
    if (beat.kind == Beat::lost) return lose(static_cast<RankId>(beat.rank), beat.how.data());
    take(beat);
  }
}

void Lifeline::take(const Beat& beat) {
  if (beat.rank >= options_.ranks) return;
  Seen& seen = seen_[beat.rank];
  if (beat.rank != options_.rank) meetings_[beat.rank].store(beat.meetings, std::memory_order_relaxed);
  if (seen.meetings.exchange(beat.meetings) != beat.meetings) seen.since = whole_seconds();
}

void Lifeline::leave(Peer& peer) {
  close(peer.fd);
  peer.fd = -1;  // poll passes over it
  peer.has_left = true;
}

/// The first process tells the others; everyone does only once.
void Lifeline::lose(RankId rank, const std::string& how) {
  is_lost_ = true;
  Beat beat;
  beat.kind = Beat::lost;
  beat.rank = rank;
  std::copy_n(how.begin(), std::min(how.size(), beat.how.size() - 1), beat.how.begin());
  if (options_.rank == 0)
    for (const Peer& peer : peers_)
      if (peer.fd >= 0 && peer.rank != rank) send_all(peer.fd, &beat, sizeof beat);
  if (options_.lost) options_.lost("rank " + std::to_string(rank) + " is lost: " + how);
}

}  // namespace sluice
