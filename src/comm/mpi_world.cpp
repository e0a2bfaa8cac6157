#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <limits>
#include <mutex>
#include <thread>

#include "src/comm/lifeline.h"
#include "src/comm/mpi_communicator.h"

namespace sluice {
namespace {

/// Between steps a process may search or read for as long as it takes: launchers end those who wait for a dead one.
constexpr std::chrono::hours between_steps(24 * 30);
constexpr int text_tag = 0, data_tag = 1;

/// MPI_Init and MPI_Finalize do not return before all processes have called them, and have no deadline: while this is
/// there, the process ends after `limit`, with status 1 and a line.
class Watch {
 public:
  Watch(std::chrono::seconds limit, const char* what) : thread_([this, limit, what] { wait(limit, what); }) {}
  ~Watch() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  void wait(std::chrono::seconds limit, const char* what) {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, limit, [this] { return done_; })) return;
    std::fprintf(stderr, "sluice: process %d of %d has waited %lld s for the others to %s: one is stopped, or lost\n",
                 launched().number, launched().processes, static_cast<long long>(limit.count()), what);
    _exit(1);
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;
};

class MpiWorld final : public World {
 public:
  MpiWorld(MPI_Comm control, RankId node_ranks, RankId place, std::unique_ptr<Alarm> alarm,
           std::unique_ptr<MpiCommunicator> communicator)
      : control_(control),
        node_ranks_(node_ranks),
        place_(place),
        alarm_(std::move(alarm)),
        communicator_(std::move(communicator)) {}
  ~MpiWorld() override {
    // Where this process has failed alone, or another is lost, the others are not at their end: MPI_Finalize would
    // wait for them. A connection that ends without a word tells them.
    lifeline_.reset();
    if (!has_ended_) return;
    const Watch watch(end_limit_, "end");
    MPI_Finalize();
  }
  /// From then on nobody is watched: who is slow to leave is not lost.
  void end() override {
    if (lifeline_ && !alarm_->is_raised()) lifeline_->say_goodbye();
    lifeline_.reset();
    has_ended_ = !alarm_->is_raised();
  }
  Status watch(std::chrono::milliseconds patience) {
    end_limit_ = std::chrono::duration_cast<std::chrono::seconds>(4 * patience);
    Lifeline::Options options;
    options.rank = communicator_->rank();
    options.ranks = ranks();
    options.one_machine = node_ranks_ == ranks();
    options.patience = patience;
    options.lost = [this](const std::string& text) { alarm_->raise(text); };
    auto connected = Lifeline::connect(options, [this](std::string_view own) { return exchange(own); });
    // Nobody watches the others before all can be watched.
    if (const Status all = agree(*this, connected.ok() ? success() : Status(connected.error())); !all.ok()) {
      end();
      return all;
    }
    lifeline_ = *std::move(connected);
    lifeline_->start();
    communicator_->on_meeting([this] { lifeline_->met(); });
    return success();
  }

  Status native(Collective collective, RankId, std::span<float> full, std::span<float> other) override {
    if (full.size() > std::numeric_limits<int>::max())
      return bad_request("MPI's own collectives count elements in 31 bits; give a smaller size");
    const int all = static_cast<int>(full.size()), part = all / ranks(), own = communicator_->rank();
    const auto said = [&](int code) { return mpi_status(code, collective_names[static_cast<std::size_t>(collective)]); };
    switch (collective) {
      case Collective::all_gather:
        return said(MPI_Allgather(MPI_IN_PLACE, 0, MPI_FLOAT, full.data(), part, MPI_FLOAT, control_));
      case Collective::reduce_scatter:
        return said(MPI_Reduce_scatter_block(full.data(), other.data(), part, MPI_FLOAT, MPI_SUM, control_));
      case Collective::all_reduce:
        return said(MPI_Allreduce(MPI_IN_PLACE, full.data(), all, MPI_FLOAT, MPI_SUM, control_));
      case Collective::all_to_all:
        return said(MPI_Alltoall(full.data(), part, MPI_FLOAT, other.data(), part, MPI_FLOAT, control_));
      case Collective::broadcast: return said(MPI_Bcast(full.data(), all, MPI_FLOAT, 0, control_));
      case Collective::exchange:
        return said(MPI_Sendrecv(full.data(), all, MPI_FLOAT, (own + 1) % ranks(), data_tag, other.data(), all, MPI_FLOAT,
                                 (own + ranks() - 1) % ranks(), data_tag, control_, MPI_STATUS_IGNORE));
    }
    return success();
  }

  void set_deadline(std::chrono::seconds deadline) override { communicator_->set_deadline(deadline); }
  bool has_lost_a_process() const override { return alarm_->is_raised(); }
  RankId ranks() const override { return communicator_->ranks(); }
  RankRange here() const override { return {communicator_->rank(), 1}; }
  RankId ranks_of_node() const override { return node_ranks_; }
  RankId place_on_node(RankId) const override { return place_; }
  std::size_t processes() const override { return ranks(); }
  Communicator& communicator(RankId rank) override {
    SLUICE_CHECK(rank == communicator_->rank(), "(rank %u of %u)", rank, communicator_->rank());
    return *communicator_;
  }
  bool shares_memory() const override { return false; }

  /// By way of who leads.
  Result<std::vector<std::string>> exchange(std::string_view own) override {
    std::vector<std::string> texts(ranks());
    if (leads()) {
      texts.front() = own;
      for (RankId from = 1; from < ranks(); ++from) {
        SLUICE_ASSIGN(texts[from], receive_text(from));
      }
      const std::string all = packed(texts);
      Messages messages(*alarm_);
      for (RankId to = 1; to < ranks(); ++to)
        SLUICE_TRY(messages.send(control_, to, text_tag, std::as_bytes(std::span(all))));
      SLUICE_TRY(messages.finish(between_steps, {}));
    } else {
      Messages messages(*alarm_);
      SLUICE_TRY(messages.send(control_, 0, text_tag, std::as_bytes(std::span(own))));
      SLUICE_TRY(messages.finish(between_steps, {}));
      SLUICE_ASSIGN(const std::string all, receive_text(0));
      texts = unpacked(all);
    }
    return texts;
  }

  Status send(RankId to, std::span<const std::byte> data) override {
    for (std::size_t at = 0; at < data.size(); at += message_bytes_max) {
      Messages messages(*alarm_);
      SLUICE_TRY(messages.send(control_, to, data_tag, data.subspan(at, std::min(message_bytes_max, data.size() - at))));
      SLUICE_TRY(messages.finish(between_steps, {}));
    }
    return success();
  }
  Status receive(RankId from, std::span<std::byte> data) override {
    for (std::size_t at = 0; at < data.size(); at += message_bytes_max) {
      Messages messages(*alarm_);
      SLUICE_TRY(
          messages.receive(control_, from, data_tag, data.subspan(at, std::min(message_bytes_max, data.size() - at))));
      SLUICE_TRY(messages.finish(between_steps, {}));
    }
    return success();
  }

 private:
  Result<std::string> receive_text(RankId from) {
    MPI_Message message;
    MPI_Status status;
    int is_there = 0;
    for (Pause pause; is_there == 0; pause.rest()) {
      if (const Status lost = alarm_->check(); !lost.ok())
        return lost.error().in("waiting for rank " + std::to_string(from) + " between steps");
      SLUICE_TRY(mpi_status(MPI_Improbe(from, text_tag, control_, &is_there, &message, &status), "MPI_Improbe"));
      if (is_there != 0) break;
    }
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    std::string text(static_cast<std::size_t>(bytes), 0);
    Messages messages(*alarm_);
    SLUICE_TRY(messages.receive(message, from, std::as_writable_bytes(std::span(text))));
    SLUICE_TRY(messages.finish(between_steps, {}));
    return text;
  }

  /// Sizes, then texts.
  static std::string packed(const std::vector<std::string>& texts) {
    std::string all;
    for (const std::string& text : texts) {
      const std::uint64_t size = text.size();
      all.append(reinterpret_cast<const char*>(&size), sizeof size);
    }
    for (const std::string& text : texts) all += text;
    return all;
  }
  std::vector<std::string> unpacked(const std::string& all) const {
    std::vector<std::string> texts(ranks());
    std::size_t at = texts.size() * sizeof(std::uint64_t);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      std::uint64_t size = 0;
      std::memcpy(&size, all.data() + i * sizeof size, sizeof size);
      texts[i] = all.substr(at, size);
      at += size;
    }
    return texts;
  }

  MPI_Comm control_;
  RankId node_ranks_, place_;
  std::unique_ptr<Alarm> alarm_;
  std::unique_ptr<MpiCommunicator> communicator_;
  std::unique_ptr<Lifeline> lifeline_;
  bool has_ended_ = false;
  std::chrono::seconds end_limit_{60};
};

}  // namespace

Result<std::unique_ptr<World>> connect_by_mpi(const MpiOptions& options) {
  const Watch watch(options.start, "start");
  int provided = 0;
  SLUICE_TRY(mpi_status(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread"));
  if (provided < MPI_THREAD_MULTIPLE)
    return bad_request("this MPI lets one thread call it at a time, and sluice needs several (MPI_THREAD_MULTIPLE); "
                       "use an MPI that was built with it, as Debian's Open MPI is");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  int ranks = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (ranks != launched().processes)
    return bad_request(std::to_string(launched().processes) + " processes were started, and the MPI that sluice was built with knows of " +
                       std::to_string(ranks) + ": start them with that MPI's own mpirun");
  if (ranks > std::numeric_limits<RankId>::max())
    return bad_request(std::to_string(ranks) + " processes: give at most " +
                       std::to_string(std::numeric_limits<RankId>::max()));
  MPI_Comm data, notices, control, node;
  for (MPI_Comm* copy : {&data, &notices, &control}) {
    SLUICE_TRY(mpi_status(MPI_Comm_dup(MPI_COMM_WORLD, copy), "MPI_Comm_dup"));
    MPI_Comm_set_errhandler(*copy, MPI_ERRORS_RETURN);
  }
  SLUICE_TRY(mpi_status(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node),
                        "MPI_Comm_split_type"));
  int node_ranks = 1, place = 0;
  MPI_Comm_size(node, &node_ranks);
  MPI_Comm_rank(node, &place);
  void* tag_limit = nullptr;
  int is_set = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &tag_limit, &is_set);
  const int tag_max = is_set != 0 ? *static_cast<const int*>(tag_limit) : 32767;
  auto alarm = std::make_unique<Alarm>();
  auto communicator = std::make_unique<MpiCommunicator>(data, notices, tag_max, *alarm);
  communicator->set_deadline(options.deadline);
  auto world = std::make_unique<MpiWorld>(control, static_cast<RankId>(node_ranks), static_cast<RankId>(place), std::move(alarm),
                                          std::move(communicator));
  SLUICE_TRY(world->watch(options.patience));
  return std::unique_ptr<World>(std::move(world));
}

}  // namespace sluice
