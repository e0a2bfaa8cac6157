#include "offload/plan/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <utility>
#include <vector>

#include "io/files/publish.h"
#include "offload/plan/finish.h"

namespace sluice {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\')
      (out += '\\') += c;
    else if (static_cast<unsigned char>(c) < 0x20)
      out += fmt::format("\\u{:04x}", static_cast<int>(c));
    else
      out += c;
  }
  return out + "\"";
}

/// Chrome's trace event format (JSON array of events): ph M names, X slices, C counters; times in microseconds.
class TraceWriter {
 public:
  explicit TraceWriter(const StepPlan& plan) : plan_(plan) {}

  void add(const NamedTimeline& timeline, int index) {
    meta(process(index), -1, "process_name", timeline.name);
    std::vector<std::vector<const Span*>> lanes(plan_.lanes.size());
    for (const Span& s : timeline.spans) lanes[plan_.ops[s.op].lane].push_back(&s);
    for (LaneId l = 0; l < static_cast<LaneId>(lanes.size()); ++l) add_lane(l, std::move(lanes[l]), index);
    counters(timeline.spans, index);
  }

  std::string finish() { return trace_begin + events_ + "\n]}\n"; }

 private:
  static int process(int index) { return index + 1; }

  /// Slices of a track may nest or be apart: readers drop what overlaps. Ops of a windowed lane do overlap, so that it
  /// gets tracks until each op has one that is free.
  void add_lane(LaneId lane, std::vector<const Span*> spans, int index) {
    std::stable_sort(spans.begin(), spans.end(), [](const Span* a, const Span* b) {
      return std::pair(nanoseconds(a->start), nanoseconds(a->end)) <
             std::pair(nanoseconds(b->start), nanoseconds(b->end));
    });
    const int pid = process(index), first = tracks_;
    std::vector<std::int64_t> busy_until;
    for (const Span* s : spans) {
      const std::int64_t start = nanoseconds(s->start), end = std::max(start, nanoseconds(s->end));
      std::size_t track = 0;
      while (track < busy_until.size() && busy_until[track] > start) ++track;
      if (track == busy_until.size()) busy_until.emplace_back();
      busy_until[track] = end;
      slice(*s, pid, first + static_cast<int>(track), start, end);
    }
    tracks_ += static_cast<int>(std::max<std::size_t>(1, busy_until.size()));
    for (int tid = first; tid < tracks_; ++tid) {
      const std::string name = lane_names[static_cast<std::size_t>(plan_.lanes[lane].kind)];
      meta(pid, tid, "thread_name", tid == first ? name : name + " " + std::to_string(tid - first + 1));
      event(fmt::format(R"({{"ph":"M","pid":{},"tid":{},"name":"thread_sort_index","args":{{"sort_index":{}}}}})", pid,
                        tid, tid));
    }
  }

  static std::int64_t nanoseconds(double seconds) { return std::llround(seconds * 1e9); }
  /// In microseconds, as the format has them.
  static std::string microseconds(std::int64_t ns) {
    return fmt::format("{}{}.{:03}", ns < 0 ? "-" : "", std::abs(ns) / 1000, std::abs(ns) % 1000);
  }

  void event(const std::string& text) {
    if (!events_.empty()) events_ += ",\n";
    events_ += text;
  }
  void meta(int pid, int tid, const char* what, const std::string& name) {
    const std::string thread = tid < 0 ? "" : fmt::format("\"tid\":{},", tid);
    event(fmt::format(R"({{"ph":"M","pid":{},{}"name":"{}","args":{{"name":{}}}}})", pid, thread, what, quoted(name)));
  }

  void slice(const Span& s, int pid, int tid, std::int64_t start, std::int64_t end) {
    const Op& op = plan_.ops[s.op];
    std::string args = fmt::format(R"("op":{},"iteration":{})", s.op, s.iteration);
    if (op.unit >= 0) args += fmt::format(R"(,"unit":{})", quoted(plan_.units[static_cast<std::size_t>(op.unit)]));
    if (op.micro_batch >= 0) args += fmt::format(R"(,"micro_batch":{})", op.micro_batch);
    if (op.tile >= 0) args += fmt::format(R"(,"tile":{})", op.tile);
    if (op.bytes > 0) args += fmt::format(R"(,"bytes":{})", op.bytes);
    if (op.flop > 0) args += fmt::format(R"(,"flop":{})", op.flop);
    // Readers that cut binary fractions off may see the next slice begin a nanosecond early: each ends that much
    // before.
    event(fmt::format(R"({{"ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"name":{},"cat":"{}","args":{{{}}}}})", pid, tid,
                      microseconds(start), microseconds(std::max<std::int64_t>(0, end - start - 1)),
                      quoted(describe(plan_, s.op)), op_names[static_cast<std::size_t>(op.kind)], args));
  }

  /// Live bytes per arena: persistent buffers always, transients from the start of their first op to the end of their
  /// last, in each iteration that the timeline shows; carried ones from iteration to iteration.
  void counters(const Timeline& spans, int index) {
    std::map<std::pair<BufferId, std::uint32_t>, std::pair<double, double>> lives;
    const Lives ops = lives_of(plan_);
    const double begin = first_start(spans), end = last_end(spans);
    const auto [first, last] = iterations_of(spans);
    for (const Span& s : spans)
      for (const Access& a : plan_.ops[s.op].accesses) {
        const Life life = plan_.buffers[a.buffer].life;
        if (life == Life::persistent) continue;
        // A carried buffer's life has the number of the iteration that it ends in.
        const bool was_carried = ops.was_carried(a.buffer, life, s.op), goes_on = life == Life::carried && !was_carried;
        const double from = was_carried && s.iteration == first ? begin : s.start,
                     to = goes_on && s.iteration == last ? end : s.end;
        const auto [it, fresh] = lives.try_emplace({a.buffer, s.iteration + (goes_on ? 1 : 0)}, from, to);
        if (!fresh) it->second = {std::min(it->second.first, from), std::max(it->second.second, to)};
      }
    using Changes = std::map<double, std::int64_t>;
    std::map<Tier, Changes> arenas;
    for (const Arena& a : plan_.arenas) arenas[a.tier];
    for (const Buffer& b : plan_.buffers)
      if (b.life == Life::persistent && !spans.empty())
        arenas[b.tier][begin] += static_cast<std::int64_t>(footprint_bytes(b));
    for (const auto& [key, life] : lives) {
      const Buffer& b = plan_.buffers[key.first];
      Changes& changes = arenas[b.tier];
      changes[life.first] += static_cast<std::int64_t>(footprint_bytes(b));
      changes[life.second] -= static_cast<std::int64_t>(footprint_bytes(b));
    }
    for (const auto& [arena, changes] : arenas) {
      std::int64_t live = 0;
      for (const auto& [time, change] : changes)
        if (change != 0)
          event(fmt::format(R"({{"ph":"C","pid":{},"ts":{:.3f},"name":"{} bytes","args":{{"live":{}}}}})",
                            process(index), time * 1e6, tier_names[static_cast<std::size_t>(arena)], live += change));
    }
  }

  static std::pair<std::uint32_t, std::uint32_t> iterations_of(const Timeline& spans) {
    if (spans.empty()) return {};
    const auto [first, last] = std::ranges::minmax_element(spans, {}, &Span::iteration);
    return {first->iteration, last->iteration};
  }
  static double last_end(const Timeline& spans) {
    return spans.empty() ? 0 : std::ranges::max_element(spans, {}, &Span::end)->end;
  }
  static double first_start(const Timeline& spans) {
    const auto first =
        std::min_element(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.start < b.start; });
    return first == spans.end() ? 0 : first->start;
  }

  const StepPlan& plan_;
  std::string events_;
  /// Used so far, in every process: readers that know threads by their number alone see one each, and none of them is
  /// taken for the main thread of a process, which has the process's number.
  int tracks_ = 1001;
};

}  // namespace

Status write_trace(const std::string& path, const StepPlan& plan, const std::vector<NamedTimeline>& timelines) {
  TraceWriter writer(plan);
  for (std::size_t i = 0; i < timelines.size(); ++i) writer.add(timelines[i], static_cast<int>(i));
  return publish_file(path, writer.finish());
}

}  // namespace sluice
