#include "src/train/states/state_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <set>

#include "sluice/adamw.h"
#include "src/train/states/moment_values.h"

namespace sluice {
namespace {

bool is_moment(StateKind kind) { return kind == StateKind::exp_avg || kind == StateKind::exp_avg_sq; }

MomentLayout layout_of(const StoredFormats& formats) { return {formats.moments, formats.moment_group_numel}; }

std::string shape_text(const StoredTensor& t) { return fmt::format("[{}]", fmt::join(t.shape, ", ")); }

}  // namespace

struct StateSource::Planned {
  StateWindow window;
  std::vector<StateCopy> copies;      ///< of the state, or of what it is made from
  std::vector<StateCopy> remainders;  ///< in the order of copies, where fp32 is made from bf16
  std::vector<BlockId> blocks;        ///< each once
};

/// Blocks of a window that are there.
struct StateSource::Fetched {
  const Manifest& manifest;
  std::map<BlockId, std::span<const std::byte>> blocks;

  const StoredState& state(const StateCopy& copy) const {
    return manifest.files[copy.file].units[copy.unit].states[copy.state];
  }
  std::uint64_t numel(const StateCopy& copy) const { return manifest.files[copy.file].units[copy.unit].numel; }
  /// Bytes of the copy's state, which may lie in several blocks.
  void read(const StateCopy& copy, std::uint64_t offset, std::uint64_t bytes, std::byte* to) const {
    const std::uint64_t size = state(copy).block_bytes;
    while (bytes > 0) {
      const std::span<const std::byte> block = blocks.at({copy.file, copy.unit, copy.state, offset / size});
      const std::uint64_t n = std::min(bytes, block.size() - offset % size);
      std::memcpy(to, block.data() + offset % size, n);
      offset += n;
      bytes -= n;
      to += n;
    }
  }
};

StateSource::StateSource(Checkpoint& checkpoint, const StoredFormats& formats, QueueOptions queue,
                         std::uint64_t ahead_bytes)
    : checkpoint_(checkpoint),
      formats_(formats),
      queue_(std::move(queue)),
      index_(checkpoint.manifest()),
      ahead_bytes_(ahead_bytes) {}

StateSource::~StateSource() = default;

Result<std::vector<std::uint32_t>> StateSource::tensors(const std::vector<StoredTensor>& wanted) const {
  const std::vector<StoredTensor>& there = checkpoint_.manifest().tensors;
  std::map<std::string, std::uint32_t> numbers;
  for (std::uint32_t i = 0; i < there.size(); ++i) numbers[there[i].name] = i;
  std::vector<std::uint32_t> found;
  for (const StoredTensor& tensor : wanted) {
    const auto number = numbers.find(tensor.name);
    if (number == numbers.end())
      return bad_request(checkpoint_.path() + " is of another model: it has no " + tensor.name);
    const StoredTensor& other = there[number->second];
    if (other.shape != tensor.shape)
      return bad_request(checkpoint_.path() + " is of another model: " + tensor.name + " is " + shape_text(other) +
                         " there, and " + shape_text(tensor) + " in the model");
    found.push_back(number->second);
    numbers.erase(number);
  }
  if (!numbers.empty())
    return bad_request(checkpoint_.path() + " is of another model, which has " + numbers.begin()->first);
  return found;
}

Status StateSource::open_reader() {
  // Only those files that anything is asked of would do, but who asks for little asks a checkpoint of few files.
  std::vector<std::uint32_t> files(checkpoint_.manifest().files.size());
  for (std::uint32_t i = 0; i < files.size(); ++i) files[i] = i;
  SLUICE_ASSIGN(reader_, BlockReader::create(checkpoint_, files, queue_));
  return success();
}

/// Appends the blocks that the copy is made from, each once where `blocks` has none.
void StateSource::add_blocks(const StateCopy& copy, std::vector<BlockId>& blocks) const {
  const StoredUnit& unit = checkpoint_.manifest().files[copy.file].units[copy.unit];
  const StoredState& state = unit.states[copy.state];
  const MomentLayout moments = layout_of(checkpoint_.manifest().formats);
  const auto add = [&](std::uint64_t begin, std::uint64_t end) {
    for (std::uint64_t b = begin / state.block_bytes; b * state.block_bytes < end; ++b)
      blocks.push_back({copy.file, copy.unit, copy.state, b});
  };
  for (std::uint64_t row = 0; row < copy.rows; ++row) {
    const std::uint64_t first = copy.from + row * copy.from_stride, last = first + copy.columns - 1;
    if (is_moment(state.kind) && moments.format == MomentFormat::int8) {
      // Codes with all scales of their groups.
      const std::uint64_t group = moments.group_numel;
      const std::uint64_t end = std::min(unit.numel, (last / group + 1) * group);
      add(moments.bytes(first / group * group), moments.bytes(end));
    } else {
      const std::uint64_t size = state.bytes / unit.numel;
      add(first * size, (last + 1) * size);
    }
    // Rows of a block are many.
    if (row % 64 == 63 || row + 1 == copy.rows) {
      std::sort(blocks.begin(), blocks.end());
      blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
    }
  }
}

StateSource::Planned StateSource::plan(const StateWindow& window) const {
  Planned planned;
  planned.window = window;
  std::vector<TensorPiece> pieces;
  for (const TensorPiece& piece : *window.pieces) clip_piece(piece, window.first, window.numel, pieces);
  const Dtype from = checkpoint_.manifest().formats.parameters;
  const auto find = [&](StateKind kind, std::vector<StateCopy>& copies) {
    for (const TensorPiece& piece : pieces) index_.find(kind, piece, copies);
  };
  if (is_moment(window.kind)) {
    if (has_moments()) find(window.kind, planned.copies);
  } else if (window.kind == StateKind::parameter || from == Dtype::f32) {
    find(StateKind::parameter, planned.copies);
    if (from == Dtype::bf16 && formats_.parameters == Dtype::f32 && has_remainders())
      find(StateKind::remainder, planned.remainders);
  } else if (has_remainders()) {
    find(StateKind::remainder, planned.copies);
  }
  for (const std::vector<StateCopy>* const copies : {&planned.copies, &planned.remainders})
    for (const StateCopy& copy : *copies) add_blocks(copy, planned.blocks);
  return planned;
}

std::uint64_t StateSource::block_bytes(std::span<const StateWindow> windows) const {
  std::set<BlockId> blocks;
  for (const StateWindow& window : windows) {
    const Planned planned = plan(window);
    blocks.insert(planned.blocks.begin(), planned.blocks.end());
  }
  std::uint64_t bytes = 0;
  for (const BlockId& id : blocks) bytes += longest_block(id);
  return bytes;
}

/// fp32 values of a state of the checkpoint.
void StateSource::read_values(const StateCopy& copy, const Fetched& fetched, float* values) const {
  const StoredFormats& from = checkpoint_.manifest().formats;
  const StateKind kind = fetched.state(copy).kind;
  const bool half = is_moment(kind) ? from.moments == MomentFormat::bf16 : from.parameters == Dtype::bf16;
  std::vector<std::byte> bytes;
  for (std::uint64_t row = 0; row < copy.rows; ++row) {
    const std::uint64_t first = copy.from + row * copy.from_stride;
    float* const to = values + copy.to + row * copy.to_stride;
    if (is_moment(kind) && from.moments == MomentFormat::int8) {
      const MomentLayout layout = layout_of(from);
      for (std::uint64_t i = 0; i < copy.columns;) {
        const std::uint64_t n = std::min(copy.columns - i, moment_block_numel - (first + i) % moment_block_numel);
        const MomentLayout::Place place = layout.place(first + i, fetched.numel(copy));
        bytes.resize(n);
        float scale = 0;
        fetched.read(copy, place.codes, n, bytes.data());
        fetched.read(copy, place.scales, sizeof scale, reinterpret_cast<std::byte*>(&scale));
        for (std::uint64_t k = 0; k < n; ++k)
          to[i + k] = decoded_moment(kind, std::to_integer<std::uint8_t>(bytes[k]), scale);
        i += n;
      }
    } else if (half) {
      bytes.resize(copy.columns * 2);
      fetched.read(copy, first * 2, bytes.size(), bytes.data());
      for (std::uint64_t i = 0; i < copy.columns; ++i) {
        bf16 value;
        std::memcpy(&value, bytes.data() + i * 2, 2);
        to[i] = to_float(value);
      }
    } else {
      fetched.read(copy, first * 4, copy.columns * 4, reinterpret_cast<std::byte*>(to));
    }
  }
}

/// Of parameters and remainders, where their dtype is another than the checkpoint's.
void StateSource::make_parameters(const Planned& planned, const Fetched& fetched) {
  const std::uint64_t n = planned.window.numel;
  values_.assign(n, 0.0f);
  for (const StateCopy& copy : planned.copies) read_values(copy, fetched, values_.data());
  if (formats_.parameters == Dtype::f32) {
    std::vector<std::int16_t> remainders(planned.remainders.empty() ? 0 : n, 0);
    std::vector<bf16> parameters(remainders.size());
    for (const StateCopy& copy : planned.remainders)
      for (std::uint64_t row = 0; row < copy.rows; ++row)
        fetched.read(copy, (copy.from + row * copy.from_stride) * 2, copy.columns * 2,
                     reinterpret_cast<std::byte*>(remainders.data() + copy.to + row * copy.to_stride));
    std::transform(
        values_.begin(), values_.begin() + static_cast<std::ptrdiff_t>(parameters.size()), parameters.begin(),
        [](float value) { return bf16{static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16)}; });
    if (!remainders.empty())
      join_master(parameters.data(), remainders.data(), values_.data(), static_cast<std::int64_t>(n));
    std::memcpy(data_.data(), values_.data(), n * 4);
    return;
  }
  std::vector<bf16> parameters(n);
  std::vector<std::int16_t> remainders(n);
  split_master(values_.data(), parameters.data(), remainders.data(), static_cast<std::int64_t>(n));
  if (planned.window.kind == StateKind::parameter)
    std::memcpy(data_.data(), parameters.data(), n * 2);
  else
    std::memcpy(data_.data(), remainders.data(), n * 2);
}

/// Of moments in fp32 and bf16, from any format.
void StateSource::make_moments(const Planned& planned, const Fetched& fetched) {
  values_.assign(planned.window.numel, 0.0f);
  for (const StateCopy& copy : planned.copies) read_values(copy, fetched, values_.data());
  if (formats_.moments == MomentFormat::f32) {
    std::memcpy(data_.data(), values_.data(), planned.window.numel * 4);
    return;
  }
  for (std::uint64_t i = 0; i < planned.window.numel; ++i) {
    const bf16 value = to_bf16(values_[i]);
    std::memcpy(data_.data() + i * 2, &value, 2);
  }
}

/// 8-bit moments: blocks as they are where the checkpoint has the same elements in one of them, else encoded anew.
void StateSource::make_codes(const Planned& planned, const Fetched& fetched) {
  constexpr std::uint64_t block = moment_block_numel;
  struct From {
    const StateCopy* copy = nullptr;
    std::uint64_t element = 0;  ///< of the stored buffer, where the block begins
    bool mixed = false;
  };
  const StateWindow& window = planned.window;
  const MomentLayout to = layout_of(formats_), from = layout_of(checkpoint_.manifest().formats);
  const bool same = from.format == MomentFormat::int8;
  std::vector<From> sources(window.numel / block);
  const auto each_run = [&](const auto& visit) {  // within a block of the window
    for (const StateCopy& copy : planned.copies)
      for (std::uint64_t row = 0; row < copy.rows; ++row)
        for (std::uint64_t i = 0; i < copy.columns;) {
          const std::uint64_t at = copy.to + row * copy.to_stride + i;
          const std::uint64_t n = std::min(copy.columns - i, block - at % block);
          visit(copy, copy.from + row * copy.from_stride + i, at, n);
          i += n;
        }
  };
  each_run([&](const StateCopy& copy, std::uint64_t element, std::uint64_t at, std::uint64_t) {
    From& source = sources[at / block];
    const std::uint64_t begin = element - std::min(element, at % block);
    const bool aligned = same && element % block == at % block;
    if (source.copy == nullptr) {
      source = {&copy, begin, !aligned};
      return;
    }
    const StateCopy& before = *source.copy;
    if (!aligned || begin != source.element || before.file != copy.file || before.unit != copy.unit)
      source.mixed = true;
  });
  bool any_mixed = false;
  for (const From& source : sources) any_mixed = any_mixed || source.mixed;
  if (any_mixed) {
    values_.assign(window.numel, 0.0f);
    for (const StateCopy& copy : planned.copies) read_values(copy, fetched, values_.data());
  }
  each_run([&](const StateCopy& copy, std::uint64_t element, std::uint64_t at, std::uint64_t n) {
    if (sources[at / block].mixed) return;
    const MomentLayout::Place there = from.place(element, fetched.numel(copy)), here = to.place(at, window.numel);
    fetched.read(copy, there.codes, n, data_.data() + here.codes);
    fetched.read(copy, there.scales, sizeof(float), data_.data() + here.scales);
  });
  for (std::uint64_t b = 0; b < sources.size(); ++b) {
    if (!sources[b].mixed) continue;
    const MomentLayout::Place here = to.place(b * block, window.numel);
    const float scale = encode_moments(window.kind, std::span(values_).subspan(b * block, block),
                                       reinterpret_cast<std::uint8_t*>(data_.data() + here.codes));
    std::memcpy(data_.data() + here.scales, &scale, sizeof scale);
    ++encoded_blocks_;
  }
}

Status StateSource::make(Planned& planned) {
  Fetched fetched{checkpoint_.manifest(), {}};
  for (const BlockId& id : planned.blocks) {
    SLUICE_ASSIGN(fetched.blocks[id], reader_->get(id));
  }
  const StateWindow& window = planned.window;
  const std::uint64_t bytes = stored_bytes(formats_, window.kind, window.numel);
  if (memory_.bytes() < bytes) memory_ = AlignedMemory(bytes);
  data_ = memory_.span().first(bytes);
  std::memset(data_.data(), 0, bytes);
  const StoredFormats& from = checkpoint_.manifest().formats;
  if (planned.copies.empty()) return success();
  if (is_moment(window.kind) && formats_.moments == MomentFormat::int8) {
    make_codes(planned, fetched);
  } else if (is_moment(window.kind) && from.moments != formats_.moments) {
    make_moments(planned, fetched);
  } else if (!is_moment(window.kind) && from.parameters != formats_.parameters) {
    make_parameters(planned, fetched);
  } else {
    const std::uint64_t size = bytes / window.numel;
    for (const StateCopy& copy : planned.copies)
      for (std::uint64_t row = 0; row < copy.rows; ++row)
        fetched.read(copy, (copy.from + row * copy.from_stride) * size, copy.columns * size,
                     data_.data() + (copy.to + row * copy.to_stride) * size);
  }
  return success();
}

Status StateSource::begin(Next next) {
  if (reader_ == nullptr) SLUICE_TRY(open_reader());
  for (const auto& planned : ahead_)
    for (const BlockId& id : planned->blocks) reader_->release(id);
  ahead_.clear();
  planned_.reset();
  next_ = std::move(next);
  return success();
}

/// One window at least, and as many as memory does for.
Status StateSource::plan_ahead() {
  for (;;) {
    if (planned_ == nullptr && next_) {
      const std::optional<StateWindow> window = next_();
      if (window)
        planned_ = std::make_unique<Planned>(plan(*window));
      else
        next_ = nullptr;
    }
    if (planned_ == nullptr) return success();
    std::uint64_t more = 0;
    for (const BlockId& id : planned_->blocks) more += reader_->holds(id) ? 0 : longest_block(id);
    if (!ahead_.empty() && reader_->held_bytes() + more > ahead_bytes_) return success();
    for (const BlockId& id : planned_->blocks) SLUICE_TRY(reader_->want(id));
    ahead_.push_back(std::move(planned_));
  }
}

Result<std::optional<StateSource::Taken>> StateSource::take() {
  SLUICE_TRY(plan_ahead());
  if (ahead_.empty()) return std::optional<Taken>();
  Planned& first = *ahead_.front();
  SLUICE_TRY(make(first));
  const Taken taken{first.window, data_};
  for (const BlockId& id : first.blocks) reader_->release(id);
  ahead_.pop_front();
  return std::optional<Taken>(taken);
}

Status StateSource::scan(Next next, const Visit& visit) {
  SLUICE_TRY(begin(std::move(next)));
  for (;;) {
    SLUICE_ASSIGN(const std::optional<Taken> taken, take());
    if (!taken) return success();
    SLUICE_TRY(visit(taken->window, taken->data));
  }
}

}  // namespace sluice
