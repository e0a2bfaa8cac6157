#include "kernels/cuda/nccl.h"

#include <algorithm>
#include <utility>

#include "kernels/cuda/library.h"

#ifdef SLUICE_HAS_NCCL
#include <nccl.h>

namespace sluice::kernels::cuda {
namespace {

/// Communicators that block nobody have what is used here since then.
constexpr int least_version = NCCL_VERSION(2, 18, 1);

std::string text_of(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace

struct Nccl::Functions {
  decltype(&ncclGetVersion) get_version;
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclGetErrorString) error_string;
  decltype(&ncclGetLastError) last_error;
  decltype(&ncclCommInitRankConfig) init_rank;
  decltype(&ncclCommGetAsyncError) async_error;
  decltype(&ncclCommAbort) abort;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclReduceScatter) reduce_scatter;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) receive;

  Status find_all(const Library& library) {
    SLUICE_TRY(library.find("ncclGetVersion", get_version));
    SLUICE_TRY(library.find("ncclGetUniqueId", get_unique_id));
    SLUICE_TRY(library.find("ncclGetErrorString", error_string));
    SLUICE_TRY(library.find("ncclGetLastError", last_error));
    SLUICE_TRY(library.find("ncclCommInitRankConfig", init_rank));
    SLUICE_TRY(library.find("ncclCommGetAsyncError", async_error));
    SLUICE_TRY(library.find("ncclCommAbort", abort));
    SLUICE_TRY(library.find("ncclGroupStart", group_start));
    SLUICE_TRY(library.find("ncclGroupEnd", group_end));
    SLUICE_TRY(library.find("ncclAllGather", all_gather));
    SLUICE_TRY(library.find("ncclReduceScatter", reduce_scatter));
    SLUICE_TRY(library.find("ncclSend", send));
    return library.find("ncclRecv", receive);
  }
};

Nccl::Nccl(std::unique_ptr<const Functions> functions, int version)
    : functions_(std::move(functions)), version_(version) {}
Nccl::~Nccl() = default;

std::string Nccl::version() const { return text_of(version_); }

Result<std::shared_ptr<const Nccl>> Nccl::open(const std::vector<std::string>& files) {
  constexpr const char* instead = "let ranks meet in host memory with --transport staged";
  const std::string file = "libnccl.so.2";
  const Result<Library> library =
      Library::open(files.empty() ? std::vector<std::string>{file, SLUICE_CUDA_LIBRARIES "/" + file} : files);
  if (!library.ok()) return bad_request("NCCL is not there: " + library.error().message + ", or " + instead);
  decltype(&ncclGetVersion) get_version = nullptr;
  SLUICE_TRY(library->find("ncclGetVersion", get_version));
  int version = 0;
  if (get_version(&version) != ncclSuccess || version < least_version)
    return bad_request("NCCL " + text_of(version) + " is too old, " + text_of(least_version) +
                       " is the first that will do; update it, or " + instead);
  auto functions = std::make_unique<Functions>();
  SLUICE_TRY(functions->find_all(*library));
  return std::shared_ptr<const Nccl>(new Nccl(std::move(functions), version));
}

Result<NcclId> Nccl::make_id() const {
  static_assert(sizeof(NcclId) == sizeof(ncclUniqueId));
  ncclUniqueId made;
  if (const ncclResult_t result = functions_->get_unique_id(&made); result != ncclSuccess)
    return fault(std::string("NCCL: ncclGetUniqueId: ") + functions_->error_string(result) + ": " +
                 functions_->last_error(nullptr));
  NcclId id;
  std::copy_n(reinterpret_cast<const std::byte*>(made.internal), id.size(), id.begin());
  return id;
}

Error NcclCommunicator::failed(int result, const char* what) const {
  const Nccl::Functions& f = *nccl_->functions_;
  const char* const more = f.last_error(comm_);
  return fault(std::string("NCCL: ") + what + ": " + f.error_string(static_cast<ncclResult_t>(result)) +
               (more != nullptr && *more != 0 ? std::string(": ") + more : ""));
}

Status NcclCommunicator::asked(int result, const char* what) {
  last_ = what;
  if (result == ncclSuccess || result == ncclInProgress) return success();
  return failed(result, what);
}

Result<std::unique_ptr<NcclCommunicator>> NcclCommunicator::join(std::shared_ptr<const Nccl> nccl, const NcclId& id,
                                                                 std::size_t ranks, std::size_t rank) {
  std::unique_ptr<NcclCommunicator> joined(new NcclCommunicator(std::move(nccl), ranks, rank));
  ncclUniqueId name;
  std::copy_n(id.begin(), id.size(), reinterpret_cast<std::byte*>(name.internal));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  SLUICE_TRY(joined->asked(joined->nccl_->functions_->init_rank(&joined->comm_, static_cast<int>(ranks), name,
                                                                static_cast<int>(rank), &config),
                           "ncclCommInitRank"));
  return joined;
}

void NcclCommunicator::abort() {
  if (comm_ != nullptr) static_cast<void>(nccl_->functions_->abort(std::exchange(comm_, nullptr)));
}

Result<bool> NcclCommunicator::has_settled() {
  ncclResult_t state = ncclSuccess;
  if (const ncclResult_t result = nccl_->functions_->async_error(comm_, &state); result != ncclSuccess)
    return failed(result, "ncclCommGetAsyncError");
  if (state == ncclInProgress) return false;
  if (state != ncclSuccess) return failed(state, last_);
  return true;
}

Status NcclCommunicator::all_gather(std::byte* full, std::uint64_t part_bytes, CUstream_st* stream) {
  return asked(nccl_->functions_->all_gather(full + rank_ * part_bytes, full, part_bytes, ncclInt8, comm_, stream),
               "ncclAllGather");
}

Status NcclCommunicator::reduce_scatter(const float* full, float* part, std::uint64_t numel, CUstream_st* stream) {
  return asked(nccl_->functions_->reduce_scatter(full, part, numel, ncclFloat32, ncclSum, comm_, stream),
               "ncclReduceScatter");
}

Status NcclCommunicator::exchange(std::span<const Outgoing> out, std::span<const Incoming> in, CUstream_st* stream) {
  const Nccl::Functions& f = *nccl_->functions_;
  SLUICE_TRY(asked(f.group_start(), "ncclGroupStart"));
  Status put;
  for (const Outgoing& m : out)
    if (put.ok())
      put = asked(f.send(m.data.data(), m.data.size(), ncclInt8, static_cast<int>(m.to), comm_, stream), "ncclSend");
  for (const Incoming& m : in)
    if (put.ok())
      put =
          asked(f.receive(m.data.data(), m.data.size(), ncclInt8, static_cast<int>(m.from), comm_, stream), "ncclRecv");
  const Status ended = asked(f.group_end(), "ncclGroupEnd");  // also behind an error: else the group stays open
  return put.ok() ? ended : put;
}

}  // namespace sluice::kernels::cuda

#else

namespace sluice::kernels::cuda {

struct Nccl::Functions {};
Nccl::~Nccl() = default;
std::string Nccl::version() const { return "none"; }

namespace {
Error is_missing() {
  return bad_request(
      "this sluice was built without NCCL's header; build it where nccl.h is, or let ranks meet in host memory with "
      "--transport staged");
}
}  // namespace

Result<std::shared_ptr<const Nccl>> Nccl::open(const std::vector<std::string>&) { return is_missing(); }
Result<NcclId> Nccl::make_id() const { return is_missing(); }
Result<std::unique_ptr<NcclCommunicator>> NcclCommunicator::join(std::shared_ptr<const Nccl>, const NcclId&,
                                                                 std::size_t, std::size_t) {
  return is_missing();
}
void NcclCommunicator::abort() {}
Result<bool> NcclCommunicator::has_settled() { return is_missing(); }
Status NcclCommunicator::all_gather(std::byte*, std::uint64_t, CUstream_st*) { return is_missing(); }
Status NcclCommunicator::reduce_scatter(const float*, float*, std::uint64_t, CUstream_st*) { return is_missing(); }
Status NcclCommunicator::exchange(std::span<const Outgoing>, std::span<const Incoming>, CUstream_st*) {
  return is_missing();
}

}  // namespace sluice::kernels::cuda

#endif
