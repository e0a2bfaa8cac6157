#include "tools/layout.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "offload/plan/simulate.h"
#include "sluice/size.h"
#include "tools/terminal.h"

namespace sluice::tools {
namespace {

LayoutWish wish_of(const RunOptions& o, const std::set<std::string>& given) {
  LayoutWish wish;
  if (given.contains("--pp")) wish.stages = o.config.stages;
  if (given.contains("--dp")) wish.data = o.data;
  if (given.contains("--cp")) wish.context = o.config.context;
  if (given.contains("--tp")) wish.tensor = o.config.tensor;
  if (given.contains("--micro-batch")) wish.micro_batch = o.config.micro_batch;
  if (given.contains("--shard-group")) wish.shard_group = o.config.shard_group;
  return wish;
}

const char* limit_of(const Layout& layout) { return resource_names[static_cast<std::size_t>(layout.limit)]; }

std::string states_of(const RunConfig& c) {
  return data_ranks(c) == 1 ? "-" : shares_states(c) ? "shared" : "in " + std::to_string(shard_group_of(c));
}

}  // namespace

Result<bool> wants_layout(const RunOptions& options, const std::set<std::string>& given, const RunConfig& config,
                          bool goes_on) {
  if (options.layout != "auto") return false;
  if (goes_on)
    return bad_request("--layout auto is for new runs, and --run " + config.run +
                       " holds one; give --pp and --dp to go on with other ranks");
  if (config.ranks == 1)
    return bad_request(
        "--layout auto arranges ranks, and there is one; give --ranks N, or start processes with mpirun");
  if (given.contains("--schedule") && options.schedule != "auto")
    return bad_request(
        "--layout auto: how many micro-batches a rank has follows from the arrangement; leave out --schedule, or give "
        "--group");
  if (given.contains("--zero"))
    return bad_request("--layout auto looks for what ranks share; leave out --zero, or give --shard-group");
  return true;
}

Result<LayoutAnswer> find_layout(const RunOptions& options, const std::set<std::string>& given, Request request,
                                 const Tell& progress) {
  LayoutWish wish = wish_of(options, given);
  if (given.contains("--pipeline") || given.contains("--chunks")) wish.pipeline = request.config.pipeline;
  if (given.contains("--cp-attention")) wish.context_attention = request.config.context_attention;
  const RunConfig asked = request.config;
  SLUICE_ASSIGN(request.config, any_layout(asked, wish));
  LayoutAnswer answer;
  SLUICE_ASSIGN(answer.checked, check_request(request));
  RunConfig config = answer.checked.config;
  config.stages = asked.stages;
  config.context = asked.context;
  config.context_attention = asked.context_attention;
  config.tensor = asked.tensor;
  config.pipeline = asked.pipeline;
  config.shard_group = asked.shard_group;
  config.micro_batch = asked.micro_batch;
  SLUICE_ASSIGN(answer.layouts, find_layouts(config, wish, progress));
  if (answer.layouts.found.empty())
    return bad_request("--layout auto: none of the " + std::to_string(answer.layouts.without_room) +
                       " arrangements that were looked at, of " + std::to_string(config.ranks) +
                       " ranks fits the budgets; plan with one of them (--pp, --tp, ...) says what it needs");
  answer.checked.config = answer.layouts.found.front().config;
  return answer;
}

std::string layout_text(const RunConfig& c) {
  std::string text = "pp " + std::to_string(c.stages) + " x dp " + std::to_string(batch_ranks(c)) + " x cp " +
                     std::to_string(c.context) + " x tp " + std::to_string(c.tensor);
  if (c.stages > 1) text += std::string(", ") + pipeline_order_names[static_cast<std::size_t>(c.pipeline.order)];
  if (c.context > 1) text += std::string(", ") + context_attention_names[static_cast<std::size_t>(c.context_attention)];
  if (data_ranks(c) > 1 && !shares_states(c)) text += ", states " + states_of(c);
  if (c.micro_batch > 1) text += ", micro-batch " + std::to_string(c.micro_batch);
  return text;
}

std::string layouts_text(const Layouts& layouts) {
  Table table({"arrangement", "step", "tokens/s", "device", "host", "nvme", "limit", "bits", "proven"});
  std::size_t estimated = 0;
  for (const Layout& l : layouts.found) {
    if (!l.is_proven) {
      ++estimated;
      continue;
    }
    const TierBytes& needs = l.needs;
    table.add({layout_text(l.config), (l.is_searched ? "" : "about ") + format_seconds(l.seconds),
               format_count(static_cast<double>(l.config.batch) * static_cast<double>(l.config.sequence) / l.seconds),
               format_bytes(needs.device), format_bytes(needs.host), format_bytes(needs.nvme), limit_of(l),
               l.keeps_bits ? "kept" : "others", l.is_searched ? "whole" : "sample"});
  }
  std::string text = table.text();
  const auto first = std::ranges::find_if(layouts.found, [](const Layout& l) { return !l.is_proven; });
  if (estimated > 0)
    text += "estimated to be slower, and not searched: " + std::to_string(estimated) + ", the quickest of them " +
            layout_text(first->config) + ", at about " + format_seconds(first->seconds) + "\n";
  if (layouts.bounded > 0)
    text +=
        "compute or send too much to be among them, whatever their schedule: " + std::to_string(layouts.bounded) + "\n";
  if (layouts.not_looked_at > 0)
    text += "promise less, and were not looked at for want of time: " + std::to_string(layouts.not_looked_at) + "\n";
  if (layouts.without_room > 0) text += "do not fit the budgets: " + std::to_string(layouts.without_room) + "\n";
  for (const Layouts::Refused& r : layouts.refused)
    text += "can not be: " + std::to_string(r.count) + "; the first: " + r.error.message + "\n";
  return text;
}

nlohmann::ordered_json layouts_json(const Layouts& layouts) {
  using Json = nlohmann::ordered_json;
  Json found = Json::array(), refused = Json::array();
  for (const Layout& l : layouts.found) {
    const RunConfig& c = l.config;
    Json j{
        {"pp", c.stages},
        {"dp", batch_ranks(c)},
        {"cp", c.context},
        {"tp", c.tensor},
        {"cp_attention", c.context > 1 ? context_attention_names[static_cast<std::size_t>(c.context_attention)] : "-"},
        {"micro_batch", c.micro_batch},
        {"pipeline", pipeline_order_names[static_cast<std::size_t>(c.pipeline.order)]},
        {"shard_group", shares_states(c) ? data_ranks(c) : c.shard_group},
        {"keeps_bits", l.keeps_bits},
        {"step_seconds", l.seconds},
        {"searched", l.is_searched},
        {"proven_on_sample", l.is_proven && !l.is_searched}};
    if (l.is_proven) {
      const TierBytes& needs = l.needs;
      j["limit"] = limit_of(l);
      j["bytes_per_rank"] = {{"device", needs.device}, {"host", needs.host}, {"nvme", needs.nvme}};
    }
    found.push_back(std::move(j));
  }
  for (const Layouts::Refused& r : layouts.refused)
    refused.push_back({{"count", r.count}, {"reason", r.error.message}});
  return {{"found", found},
          {"without_room", layouts.without_room},
          {"bounded", layouts.bounded},
          {"not_looked_at", layouts.not_looked_at},
          {"refused", refused}};
}

}  // namespace sluice::tools
