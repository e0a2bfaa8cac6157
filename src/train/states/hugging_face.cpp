#include "src/train/states/hugging_face.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "io/weights/read_ahead.h"
#include "src/model/hf_weights.h"

namespace sluice {
namespace {

HfLookup lookup_in(const SafeTensors& file) {
  return [&file](const std::string& name) -> std::optional<HfTensor> {
    const TensorEntry* entry = file.find(name);
    if (entry == nullptr) return std::nullopt;
    HfTensor t;
    t.dtype = to_dtype(entry->dtype);
    t.shape.assign(entry->shape.begin(), entry->shape.end());
    return t;
  };
}

constexpr std::uint64_t compared_bytes = 1u << 20;

/// A tied model has one matrix: a second one beside it must be the same, or the file is of an untied model.
Status check_tied(const SafeTensors& file, const ModelSpec& model) {
  const TensorEntry* head = model.config.tied ? file.find("lm_head.weight") : nullptr;
  if (head == nullptr) return success();
  const std::string& name = model.units.front().tensors.front().name;
  const TensorEntry* embedding = file.find(name);
  if (embedding == nullptr) embedding = file.find(std::string_view(name).substr(name.find('.') + 1));
  const Error differs = bad_request("tie_word_embeddings is true, and lm_head.weight is not the same as " + name);
  if (embedding == nullptr || embedding->dtype != head->dtype || embedding->shape != head->shape) return differs;
  std::vector<std::byte> a(compared_bytes), b(compared_bytes);
  for (std::uint64_t at = 0; at < head->bytes; at += compared_bytes) {
    a.resize(std::min(compared_bytes, head->bytes - at));
    b.resize(a.size());
    SLUICE_TRY(file.read(*head, at, a));
    SLUICE_TRY(file.read(*embedding, at, b));
    if (a != b) return differs;
  }
  return success();
}

}  // namespace

Result<HuggingFaceWeights> HuggingFaceWeights::open(const std::string& directory, const ModelSpec& model) {
  HuggingFaceWeights w;
  SLUICE_ASSIGN(w.file_, SafeTensors::open(directory));
  std::vector<std::string> names;
  for (const auto& [name, entry] : w.file_.entries()) names.push_back(name);
  Status complete = check_hf_weights(model, lookup_in(w.file_), names);
  if (complete.ok()) complete = check_tied(w.file_, model);
  if (!complete.ok()) return complete.error().in(directory);
  for (const UnitSpec& unit : model.units) {
    std::vector<Source>& sources = w.units_.emplace_back();
    for (const TensorSpec& tensor : unit.tensors) {
      const std::vector<std::string> stored = hf_names(tensor);
      const TensorEntry* entry = nullptr;
      for (const std::string& name : stored)
        if (entry == nullptr) entry = w.file_.find(name);
      sources.push_back({&tensor, entry, *to_dtype(entry->dtype)});
    }
  }
  return w;
}

std::uint64_t HuggingFaceWeights::element_bytes_max() const {
  std::uint64_t most = 0;
  for (const auto& sources : units_)
    for (const Source& source : sources) most = std::max(most, dtype_bytes(source.dtype));
  return most;
}

bool HuggingFaceWeights::all_stored_as(Dtype dtype) const {
  for (const auto& sources : units_)
    for (const Source& source : sources)
      if (source.dtype != dtype) return false;
  return true;
}

/// What fills a part of a piece.
struct WeightStream::Part {
  /// Where what is read goes in the piece; of a part of a matrix not all that lies between is wanted.
  struct Copy {
    std::uint64_t from, at, numel;  ///< elements of what is read, and of the piece
  };
  const HuggingFaceWeights::Source* source;
  std::uint64_t first, numel;  ///< elements of the model's tensor
  std::vector<Copy> copies;
};

/// The thread, and what it has ready for the caller.
class WeightStream::Reader {
 public:
  Reader(const HuggingFaceWeights& weights, WeightPieces pieces, bool as_stored, const SplitModel* split)
      : weights_(weights), pieces_(std::move(pieces)), as_stored_(as_stored), split_(split) {}
  ~Reader() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  Status start() {
    ReadAhead::Options options;
    options.range_bytes_max = pieces_.piece_numel() * weights_.element_bytes_max();
    const auto next = [this, pieces = pieces_, parts = std::vector<Part>(),
                       at = std::size_t{0}]() mutable -> std::optional<ReadAhead::Range> {
      while (at == parts.size()) {
        const std::optional<WeightPiece> piece = pieces.next();
        if (!piece) return std::nullopt;
        parts = parts_of(*piece);
        at = 0;
      }
      const Part& part = parts[at++];
      const TensorEntry& entry = *part.source->entry;
      const std::uint64_t size = dtype_bytes(part.source->dtype),
                          first = part.source->tensor->stored.first + part.first;
      return ReadAhead::Range{entry.file, entry.offset + first * size, part.numel * size};
    };
    SLUICE_ASSIGN(files_, ReadAhead::create(weights_.file_.files(), next, options));
    thread_ = std::thread([this] { run(); });
    return success();
  }

  Result<WeightValues> take() {
    std::unique_lock lock(mutex_);
    released_ = taken_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return ready_ > taken_ || over_; });
    if (ready_ > taken_) {
      const Values& values = ring_[taken_++ % ring_.size()];
      return as_stored_ ? WeightValues(std::span(values.stored)) : WeightValues(std::span(values.wide));
    }
    SLUICE_CHECK(!status_.ok(), "(%s)", "there are no more pieces");
    return status_.error();
  }

 private:
  std::vector<Part> parts_of(const WeightPiece& piece) const {
    if (split_ != nullptr) return parts_of_part(piece);
    std::vector<Part> parts;
    const std::uint64_t first = piece.first, last = first + piece.content_numel;
    for (const HuggingFaceWeights::Source& source : weights_.units_[static_cast<std::size_t>(piece.unit)]) {
      const TensorSpec& t = *source.tensor;
      const std::uint64_t a = std::max(first, t.offset), b = std::min(last, t.offset + t.numel);
      if (a < b) parts.push_back({&source, a - t.offset, b - a, {{0, a - first, b - a}}});
    }
    return parts;
  }
  /// Runs of a tensor are read together, with what lies between them, as far as the buffers go.
  std::vector<Part> parts_of_part(const WeightPiece& piece) const {
    std::vector<Part> parts;
    const std::uint64_t first = piece.first_of_part, last = first + piece.content_numel;
    const auto unit = static_cast<std::size_t>(piece.unit);
    for (std::size_t i = 0; i < weights_.units_[unit].size(); ++i) {
      const TensorSpec& t = split_->part().units[unit].tensors[i];
      bool opens = true;
      if (t.offset >= last || t.offset + t.numel <= first) continue;
      split_->each_run(piece.unit, i, piece.part, [&](const SplitModel::Run& run) {
        const std::uint64_t begin = t.offset + run.of_part;
        const std::uint64_t a = std::max(first, begin), b = std::min(last, begin + run.numel);
        if (a >= b) return;
        const std::uint64_t whole = run.of_whole + (a - begin);
        if (opens || whole + (b - a) - parts.back().first > pieces_.piece_numel())
          parts.push_back({&weights_.units_[unit][i], whole, 0, {}});
        opens = false;
        Part& part = parts.back();
        part.numel = whole + (b - a) - part.first;
        part.copies.push_back({whole - part.first, a - first, b - a});
      });
    }
    return parts;
  }

  struct Values {
    std::vector<float> wide;
    std::vector<bf16> stored;
  };

  Status fill(const WeightPiece& piece, Values& out) {
    return as_stored_ ? fill(piece, out.stored,
                             [](Dtype, std::span<const std::byte> bytes, std::span<bf16> values) {
                               std::memcpy(values.data(), bytes.data(), bytes.size());
                             })
                      : fill(piece, out.wide, widen);
  }

  template <class T, class Convert>
  Status fill(const WeightPiece& piece, std::vector<T>& out, const Convert& convert) {
    out.resize(piece.numel);
    std::uint64_t end = 0;  // of what is filled; tensors lie in the order of their offsets
    const auto pad_until = [&](std::uint64_t begin) {
      std::fill(out.begin() + static_cast<std::ptrdiff_t>(end), out.begin() + static_cast<std::ptrdiff_t>(begin), T{});
    };
    for (const Part& part : parts_of(piece)) {
      SLUICE_ASSIGN(const std::span<const std::byte> bytes, files_->take());
      const std::uint64_t size = dtype_bytes(part.source->dtype);
      for (const Part::Copy& copy : part.copies) {
        pad_until(copy.at);
        convert(part.source->dtype, bytes.subspan(copy.from * size, copy.numel * size),
                std::span(out).subspan(copy.at, copy.numel));
        end = copy.at + copy.numel;
      }
    }
    pad_until(piece.numel);
    return success();
  }

  void run() {
    Status status;
    for (std::optional<WeightPiece> piece = pieces_.next(); piece && status.ok(); piece = pieces_.next()) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stop_ || ready_ - released_ < ring_.size(); });
      if (stop_) return;
      Values& out = ring_[ready_ % ring_.size()];
      lock.unlock();
      status = fill(*piece, out);
      lock.lock();
      ready_ += status.ok();
      changed_.notify_all();
    }
    const std::lock_guard lock(mutex_);
    status_ = status;
    over_ = true;
    changed_.notify_all();
  }

  const HuggingFaceWeights& weights_;
  WeightPieces pieces_;
  std::unique_ptr<ReadAhead> files_;
  bool as_stored_;  ///< bf16
  const SplitModel* split_;
  std::array<Values, 4> ring_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t ready_ = 0, taken_ = 0, released_ = 0;  ///< pieces so far
  bool stop_ = false, over_ = false;
  Status status_;
  std::thread thread_;
};

WeightStream::WeightStream(std::unique_ptr<Reader> reader) : reader_(std::move(reader)) {}
WeightStream::~WeightStream() = default;

Result<std::unique_ptr<WeightStream>> WeightStream::open(const HuggingFaceWeights& weights, WeightPieces pieces,
                                                         Dtype wanted, const SplitModel* split) {
  const bool as_stored = wanted == Dtype::bf16 && weights.all_stored_as(Dtype::bf16);
  auto reader = std::make_unique<Reader>(weights, std::move(pieces), as_stored, split);
  SLUICE_TRY(reader->start());
  return std::unique_ptr<WeightStream>(new WeightStream(std::move(reader)));
}

Result<WeightValues> WeightStream::next() { return reader_->take(); }

}  // namespace sluice
