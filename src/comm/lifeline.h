// Whether the other processes of a run are alive, and what they do: asked outside MPI, which waits for the dead.
//
// Every process has a connection to the first one, on which both say every second how many meetings they have had. A
// connection that ends, or is silent for too long (a process that was stopped, a cable that was pulled), is a lost
// process; the first one tells the others which. That the first is lost shows on everyone's own connection.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "sluice/status.h"
#include "sluice/topology.h"

namespace sluice {

class Lifeline {
 public:
  struct Options {
    RankId rank = 0, ranks = 1;
    bool one_machine = true;  ///< all of them are on it: nobody else can connect
    std::chrono::milliseconds beat{1000};
    std::chrono::milliseconds patience{15000};  ///< with a silent process
    /// Called once, on the lifeline's thread, when a process is lost: "rank 3 is lost: its process has ended".
    std::function<void(const std::string& text)> lost;
  };
  /// Every process gives a text, and gets those of all.
  using Exchange = std::function<Result<std::vector<std::string>>(std::string_view)>;
  /// All processes call it. Errors: bad_request where the first one can not be reached.
  static Result<std::unique_ptr<Lifeline>> connect(const Options& options, const Exchange& exchange);
  /// When all have connected.
  void start();
  /// All are done with each other: that this process ends is no loss. One that goes without this is lost.
  void say_goodbye() { leaves_ = true; }
  ~Lifeline();

  /// This process has met others once more. Any thread.
  void met() { meetings_[options_.rank].fetch_add(1, std::memory_order_relaxed); }
  /// For how long a rank has met nobody, as far as is known here.
  std::chrono::seconds idle(RankId rank) const;

 private:
  struct Peer {
    RankId rank = 0;
    int fd = -1;
    std::string received;
    std::chrono::steady_clock::time_point heard;
    bool has_left = false;  ///< at `heard`
  };
  struct Beat;
  explicit Lifeline(Options options);
  Status listen_for_others(const Exchange& exchange);
  Status reach_first(const Exchange& exchange);
  void run();
  void send_beats();
  void read_from(Peer& peer);
  void take(const Beat& beat);
  void lose(RankId rank, const std::string& how);
  void leave(Peer& peer);

  Options options_;
  std::vector<Peer> peers_;
  std::vector<std::atomic<std::uint64_t>> meetings_;  ///< [rank]
  struct Seen {
    std::atomic<std::uint64_t> meetings{0};
    std::atomic<std::int64_t> since{0};  ///< seconds of the steady clock
  };
  std::vector<Seen> seen_;  ///< [rank]
  bool is_lost_ = false;
  std::atomic<bool> ends_{false}, leaves_{false};
  int wake_ = -1;
  std::thread thread_;
};

}  // namespace sluice
