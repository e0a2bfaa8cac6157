#include "src/train/request/decided.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "offload/plan/world.h"
#include "src/device/profile.h"
#include "src/train/request/run_config_json.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::uint64_t> signatures(const Prepared& run) {
  std::vector<std::uint64_t> all;
  for (const StagePlans& stage : run.stages)
    for (const auto plan : plans_of_stage) all.push_back(plan_signature(stage.*plan));
  return all;
}

}  // namespace

RunConfig with_budgets(const Prepared& run) {
  RunConfig c = run.config;
  const auto budget = [&](Tier t) { return run.workload.budget_bytes[static_cast<std::size_t>(t)]; };
  const auto ranks = static_cast<std::uint64_t>(ranks_of_machine(c));
  if (c.device_memory == 0) c.device_memory = budget(Tier::device);
  if (c.host_memory == 0) c.host_memory = budget(Tier::host) * ranks;
  if (c.nvme_space == 0 && !c.nvme.empty()) c.nvme_space = budget(Tier::nvme) * ranks;
  return c;
}

RunConfig with_decisions(const Prepared& run) {
  const Workload& w = run.workload;
  RunConfig c = with_budgets(run);
  c.durable = w.durable ? Durable::on : Durable::off;
  c.threads = w.threads;
  c.lots = w.lots * w.batch_ranks();
  if (w.sums == RankSums::int4) c.close_ranks = w.close_ranks();
  return c;
}

std::string decided_text(const Prepared& run, Purpose purpose) {
  Json j;
  j["purpose"] = static_cast<int>(purpose);
  RunConfig config = run.config;
  config.transport = run.workload.collects_on_device ? Transport::nccl : Transport::staged;
  j["config"] = to_json(config);
  j["run"] = run.config.run;
  j["assume"] = run.config.assume;
  j["ranks_of_node"] = run.config.ranks_of_node;
  j["devices_apart"] = run.config.devices_apart;
  j["schedule"] = to_json(run.search.schedule);
  // The drive that was chosen goes as one of the profile's.
  HardwareProfile profile = run.profile;
  profile.drives = {{"chosen", run.profile.drive}};
  j["profile"] = to_text(profile);
  j["device"] = run.workload.device;
  j["kernels"] = run.kernels;
  j["budget_bytes"] = run.workload.budget_bytes;
  j["threads"] = run.workload.threads;
  j["durable"] = run.workload.durable;
  j["saves"] = run.workload.saves;
  j["signatures"] = signatures(run);
  return j.dump();
}

Result<std::unique_ptr<Prepared>> prepare_from_text(const std::string& text, const RunConfig& own) {
  const Json j = Json::parse(text, nullptr, false);
  if (!j.is_object()) return fault("what rank 0 has decided has not arrived");
  Decided decided;
  decided.purpose = static_cast<Purpose>(j["purpose"].get<int>());
  SLUICE_ASSIGN(decided.config, run_config_from_json(j["config"]));
  decided.config.run = j["run"].get<std::string>();
  decided.config.assume = j["assume"].get<bool>();
  decided.config.ranks_of_node = j["ranks_of_node"].get<int>();
  decided.config.devices_apart = j["devices_apart"].get<bool>();
  decided.config.faults = own.faults;
  decided.config.json = own.json;
  SLUICE_ASSIGN(decided.schedule, schedule_from_json(j["schedule"]));
  SLUICE_ASSIGN(decided.profile, profile_from_text(j["profile"].get<std::string>()));
  decided.profile.drive = decided.profile.drives["chosen"];
  decided.device = j["device"].get<std::string>();
  select_device(decided.profile, decided.device);
  decided.kernels = j["kernels"].get<KernelChoices>();
  decided.budget_bytes = j["budget_bytes"].get<std::array<std::uint64_t, 3>>();
  decided.threads = j["threads"].get<int>();
  decided.durable = j["durable"].get<bool>();
  decided.saves = j["saves"].get<bool>();
  SLUICE_ASSIGN(auto run, prepare_decided(decided));
  if (signatures(*run) != j["signatures"].get<std::vector<std::uint64_t>>())
    return fault("the plans here are others than rank 0's: all ranks need the same sluice");
  return run;
}

Result<std::unique_ptr<Prepared>> share_prepared(World& world, Result<std::unique_ptr<Prepared>> own, Purpose purpose,
                                                 const RunConfig& config) {
  const bool leads = world.leads();
  SLUICE_TRY(agree(world, !leads || own.ok() ? success() : Status(own.error())));
  SLUICE_ASSIGN(const std::string text, from_leader(world, leads ? decided_text(**own, purpose) : ""));
  if (!leads) own = prepare_from_text(text, config);
  SLUICE_TRY(agree(world, own.ok() ? success() : Status(own.error())));
  return own;
}

}  // namespace sluice
