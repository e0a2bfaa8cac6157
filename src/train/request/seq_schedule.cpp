#include "src/train/request/seq_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

namespace sluice {
namespace {

constexpr const char* all_that_are_left = "*";
constexpr const char* again_and_again = "...";
// Products of lengths and steps do not overflow.
constexpr std::int64_t sequence_max = std::int64_t{1} << 24, batch_max = std::int64_t{1} << 20;

bool read_count(std::string_view text, std::int64_t count_max, std::int64_t& count) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  return error == std::errc() && end == text.data() + text.size() && count >= 1 && count <= count_max;
}

Error malformed(const std::string& text, std::string_view part) {
  return bad_request(
      fmt::format("--seq-schedule {}: '{}' is not LENGTH:STEPS; give lengths and how many steps have them, like "
                  "512:1000,2048:*, or lengths of whole documents, like 2-512:100,513-2048:50,...",
                  text, part));
}

Error takes_all(const std::string& text, const char* mark) {
  return bad_request(fmt::format(
      "--seq-schedule {}: '{}' takes all steps that are left, so that nothing may follow it; give it to the "
      "last length alone",
      text, mark));
}

/// [SHORTEST-]LENGTH[xBATCH]:STEPS, of which `steps` may be "*".
bool read_phase(std::string_view part, SequencePhase& phase, std::int64_t& count, bool& open) {
  const std::size_t colon = part.find(':');
  if (colon == std::string_view::npos) return false;
  const std::string_view steps = part.substr(colon + 1);
  std::string_view lengths = part.substr(0, colon);
  if (const std::size_t times = lengths.find('x'); times != std::string_view::npos) {
    if (!read_count(lengths.substr(times + 1), batch_max, phase.batch)) return false;
    lengths = lengths.substr(0, times);
  }
  if (const std::size_t dash = lengths.find('-'); dash != std::string_view::npos) {
    if (!read_count(lengths.substr(0, dash), sequence_max, phase.shortest)) return false;
    lengths = lengths.substr(dash + 1);
  }
  open = steps == all_that_are_left;
  if (!open && !read_count(steps, scheduled_steps_max, count)) return false;
  return read_count(lengths, sequence_max, phase.sequence);
}

/// A document's first token has nothing that it could be predicted from.
constexpr std::int64_t shortest_min = 2;

Status check_lengths(const std::string& text, const SequencePhase& phase) {
  if (phase.shortest > phase.sequence)
    return bad_request(
        fmt::format("--seq-schedule {}: {}: the shortest document is longer than the longest; give {}-{}", text,
                    phase.text(), phase.sequence, phase.shortest));
  if (!phase.of_documents() || phase.shortest >= shortest_min) return success();
  return bad_request(fmt::format("--seq-schedule {}: {}: a document of one token has nothing to learn; give {}-{}",
                                 text, phase.text(), shortest_min, std::max(phase.sequence, shortest_min)));
}

Error none_is_left(const std::string& text, std::int64_t steps, const SequencePhase& phase) {
  return bad_request(
      fmt::format("--seq-schedule {}: of --steps {} none is left for sequences of {}; give at least --steps {}", text,
                  steps, phase.lengths(), phase.first));
}

/// The phases again and again, up to the last step.
Status repeat(const std::string& text, std::int64_t steps, std::vector<SequencePhase>& phases) {
  if (steps <= 0)
    return bad_request(
        fmt::format("--seq-schedule {}: '{}' goes on to the last step; say with --steps how many there are", text,
                    again_and_again));
  const std::size_t once = phases.size();
  for (const SequencePhase& phase : phases)
    if (phase.first > steps) return none_is_left(text, steps, phase);
  while (phases.back().last < steps) {
    if (phases.size() == phases_max)
      return bad_request(
          fmt::format("--seq-schedule {}: --steps {} would change lengths more than {} times; give each "
                      "more steps",
                      text, steps, phases_max));
    SequencePhase next = phases[phases.size() - once];
    const std::int64_t behind = phases.back().last + 1 - next.first;
    next.first += behind;
    next.last += behind;
    phases.push_back(next);
  }
  phases.back().last = steps;
  return success();
}

}  // namespace

std::string SequencePhase::lengths() const {
  return of_documents() ? fmt::format("{} to {}", shortest, sequence) : std::to_string(sequence);
}

std::string SequencePhase::text() const {
  return (of_documents() ? fmt::format("{}-{}", shortest, sequence) : std::to_string(sequence)) +
         (batch > 0 ? fmt::format("x{}", batch) : "");
}

bool has_batches(const std::vector<SequencePhase>& phases) {
  return std::ranges::any_of(phases, [](const SequencePhase& phase) { return phase.batch > 0; });
}

std::int64_t batch_of(const SequencePhase& phase, const RunConfig& config) {
  return phase.batch > 0 ? phase.batch : config.batch;
}

bool takes_steps(const std::string& seq_schedule) {
  return seq_schedule.ends_with(all_that_are_left) || seq_schedule.ends_with(again_and_again);
}

namespace {

/// One turn; with `repeats` set where more follow, and `open` where the last phase takes the steps that are left.
Result<std::vector<SequencePhase>> parse_turn(const std::string& text, std::int64_t steps, bool& repeats, bool& open) {
  std::vector<SequencePhase> phases;
  std::int64_t next = 1;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string_view part = std::string_view(text).substr(at, end - at);
    at = end + 1;
    if (part == again_and_again && !phases.empty()) {
      if (end < text.size()) return takes_all(text, again_and_again);
      repeats = true;
      break;
    }
    SequencePhase phase{.first = next};
    std::int64_t count = 0;
    if (!read_phase(part, phase, count, open)) return malformed(text, part);
    SLUICE_TRY(check_lengths(text, phase));
    if (!phases.empty() && phases.back().is_like(phase))
      return bad_request(
          fmt::format("--seq-schedule {}: {} follows {}; make one of both", text, phase.text(), phase.text()));
    if (phases.size() == phases_max)
      return bad_request(fmt::format("--seq-schedule has more than {} lengths", phases_max));
    if (open && end < text.size()) return takes_all(text, all_that_are_left);
    phase.last = open ? steps : next + count - 1;
    if (phase.last < phase.first) return none_is_left(text, steps, phase);
    next = phase.last + 1;
    phases.push_back(phase);
  }
  if (has_batches(phases) && std::ranges::any_of(phases, [](const SequencePhase& phase) { return phase.batch == 0; }))
    return bad_request(fmt::format(
        "--seq-schedule {}: some lengths say how many sequences a step has, and some do not; say it of all, "
        "or of none",
        text));
  if (repeats && phases.back().is_like(phases.front()))
    return bad_request(fmt::format("--seq-schedule {}: {} follows {} where it begins again; make one of both", text,
                                   phases.front().text(), phases.back().text()));
  return phases;
}

}  // namespace

Result<std::vector<SequencePhase>> parse_seq_schedule(const std::string& text, std::int64_t steps) {
  if (steps > scheduled_steps_max)
    return bad_request(fmt::format("--steps {}: with --seq-schedule give at most {}", steps, scheduled_steps_max));
  bool repeats = false, open = false;
  SLUICE_ASSIGN(std::vector<SequencePhase> phases, parse_turn(text, steps, repeats, open));
  if (repeats) {
    SLUICE_TRY(repeat(text, steps, phases));
    return phases;
  }
  if (!open && steps > 0 && phases.back().last != steps)
    return bad_request(
        fmt::format("--seq-schedule {} has {} steps, and --steps is {}; leave --steps out, or give the "
                    "last length all steps that are left ({}:*)",
                    text, phases.back().last, steps, phases.back().text()));
  return phases;
}

Result<std::vector<SequencePhase>> parse_seq_schedule_once(const std::string& text) {
  bool repeats = false, open = false;
  return parse_turn(text, scheduled_steps_max, repeats, open);
}

std::vector<SequencePhase> phases_of(const RunConfig& config) {
  if (config.seq_schedule.empty()) return {{config.sequence, 1, config.steps}};
  Result<std::vector<SequencePhase>> phases = parse_seq_schedule(config.seq_schedule, config.steps);
  SLUICE_CHECK(phases.ok(), "(%s)", phases.ok() ? "" : phases.error().message.c_str());
  return *std::move(phases);
}

std::vector<std::size_t> phases_apart(const RunConfig& config, std::size_t from) {
  const std::vector<SequencePhase> phases = phases_of(config);
  std::vector<std::size_t> apart;
  for (std::size_t i = from; i < phases.size(); ++i)
    if (std::ranges::none_of(apart, [&](std::size_t other) { return phases[other].is_like(phases[i]); }))
      apart.push_back(i);
  return apart;
}

SequencePhase phase_of(const RunConfig& config) { return phases_of(config)[static_cast<std::size_t>(config.phase)]; }

RunConfig at_phase(RunConfig config, std::size_t phase) {
  const SequencePhase at = phases_of(config)[phase];
  config.sequence = at.sequence;
  config.batch = static_cast<int>(batch_of(at, config));
  config.phase = static_cast<int>(phase);
  return config;
}

std::int64_t border_sequence(const RunConfig& config) { return phases_of(config).front().sequence; }

namespace {

std::uint64_t steps_until(const SequencePhase& phase, std::int64_t step) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(0, std::min(step, phase.last) - phase.first + 1));
}

}  // namespace

std::uint64_t tokens_after(const RunConfig& config, std::int64_t step) {
  std::uint64_t tokens = 0;
  for (const SequencePhase& phase : phases_of(config))
    tokens += steps_until(phase, step) * static_cast<std::uint64_t>(phase.sequence * batch_of(phase, config));
  return tokens;
}

std::uint64_t samples_before(const RunConfig& config) {
  const SequencePhase now = phase_of(config);
  const auto length = static_cast<std::uint64_t>(now.sequence);
  std::uint64_t alike = 0, tokens = 0;  // sequences, and tokens of those that were not of documents
  for (const SequencePhase& phase : phases_of(config)) {
    const std::uint64_t sequences =
        steps_until(phase, now.first - 1) * static_cast<std::uint64_t>(batch_of(phase, config));
    if (phase.has_lengths_of(now)) alike += sequences;
    if (!phase.of_documents()) tokens += sequences * static_cast<std::uint64_t>(phase.sequence);
  }
  return now.of_documents() ? alike : (tokens + length - 1) / length;
}

Status check_seq_schedule(const RunConfig& config) {
  if (config.seq_schedule.empty() && config.phase == 0) return success();
  SLUICE_ASSIGN(const std::vector<SequencePhase> phases, parse_seq_schedule(config.seq_schedule, config.steps));
  const auto at = static_cast<std::size_t>(config.phase);
  if (config.phase > 0 && at >= phases.size() && !config.seq_schedule.empty())
    return bad_request(
        fmt::format("--steps {}: the run is beyond that, at part {} of --seq-schedule {}; give more steps, or the "
                    "schedule that it has",
                    config.steps, at + 1, config.seq_schedule));
  if (config.phase >= 0 && at < phases.size() && phases[at].sequence == config.sequence &&
      batch_of(phases[at], config) == config.batch)
    return success();
  return bad_request(fmt::format("--seq-schedule {} does not have {} sequences of {} a step where the run is",
                                 config.seq_schedule, config.batch, config.sequence));
}

}  // namespace sluice
