// The checksums of a file of states, in a file beside it: "SLUICSUM", u32 version, u32 zero, u64 count, then count XXH3
// of blocks, in the order of the manifest. Little endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/drives/queue.h"
#include "sluice/status.h"

namespace sluice {

/// XXH3, and never 0, which says that there is none: then 1.
std::uint64_t block_sum(std::span<const std::byte> data);

/// A new file, on the drive when this returns. Gives the XXH3 of the whole file.
Result<std::uint64_t> write_sums(const std::string& path, std::span<const std::uint64_t> sums);
/// bad_request when the file is not what `file_sum` is of, or has other than `count` checksums.
Result<std::vector<std::uint64_t>> read_sums(int fd, const std::string& path, std::uint64_t file_sum,
                                             std::uint64_t count);

/// Around the page cache where the file system has that. Who opens it closes it. Links are not followed.
Result<IoFile> open_direct(const std::string& path, int flags);

}  // namespace sluice
