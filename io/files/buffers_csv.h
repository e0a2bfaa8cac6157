// Buffers with their lives as a table: the format of MiniMalloc (github.com/google/minimalloc).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/status.h"

namespace sluice {

/// Alive from `lower` to before `upper`.
struct BufferRow {
  std::string id;
  std::uint64_t lower = 0, upper = 0;
  std::uint64_t bytes = 0;
};

/// The most that the buffers of a file may have together, so that sums of them can not overflow.
constexpr std::uint64_t max_buffer_bytes = std::uint64_t{1} << 60;

/// The first line names the columns, in any order: id (or buffer, buffer_id), lower (or start, begin), upper, or `end`,
/// which is alive itself, and size. `hint` and `offset` are passed over; `alignment` has to be 1 and `gaps` empty, as
/// buffers are placed on the alignment that all have, and for all of their lives. Lines may end with CR LF, empty ones
/// are passed over. bad_request for everything else, as "NAME:LINE: what is wrong; what to do".
Result<std::vector<BufferRow>> parse_buffers_csv(std::string_view text, const std::string& name);

/// id,lower,upper,size,offset; one offset per buffer.
constexpr const char* placed_csv_begin = "id,lower,upper,size,offset\n";
std::string to_buffers_csv(std::span<const BufferRow> buffers, std::span<const std::uint64_t> offsets);

}  // namespace sluice
