// A table of buffers: rows that can be packed, or one line that says what is wrong.
#include "io/files/buffers_csv.h"

#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto rows = sluice::parse_buffers_csv({reinterpret_cast<const char*>(data), size}, "table.csv");
  if (!rows.ok()) {
    sluice::fuzz::check_refusal(rows.error());
    return 0;
  }
  SLUICE_CHECK(!rows->empty(), "no rows");
  std::uint64_t total = 0;
  std::vector<std::uint64_t> offsets;
  for (const sluice::BufferRow& row : *rows) {
    SLUICE_CHECK(!row.id.empty() && row.bytes > 0 && row.lower < row.upper, "a row of no life");
    offsets.push_back(total);
    total += row.bytes;
    SLUICE_CHECK(total <= sluice::max_buffer_bytes, "%llu bytes", static_cast<unsigned long long>(total));
  }
  // What is written is read again as it was.
  const auto again = sluice::parse_buffers_csv(sluice::to_buffers_csv(*rows, offsets), "written.csv");
  SLUICE_CHECK(again.ok() && again->size() == rows->size(), "what was written is not read");
  for (std::size_t i = 0; i < rows->size(); ++i) {
    const sluice::BufferRow &a = (*rows)[i], &b = (*again)[i];
    SLUICE_CHECK(a.id == b.id && a.lower == b.lower && a.upper == b.upper && a.bytes == b.bytes, "row %zu differs", i);
  }
  return 0;
}
