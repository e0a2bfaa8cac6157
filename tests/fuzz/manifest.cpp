// manifest.json of a checkpoint, with a checksum that is right: refused in one line, or all tensors are there.
#include "io/checkpoint/manifest.h"

#include "io/checkpoint/pieces.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto manifest =
      sluice::parse_manifest(sluice::sealed_manifest(std::string(reinterpret_cast<const char*>(data), size)));
  if (!manifest.ok()) {
    sluice::fuzz::check_refusal(manifest.error());
    return 0;
  }
  const sluice::PieceIndex index(*manifest);
  SLUICE_CHECK(index.has(sluice::StateKind::parameter), "no parameters");
  for (std::uint32_t t = 0; t < manifest->tensors.size(); ++t) {
    const sluice::StoredTensor& tensor = manifest->tensors[t];
    std::vector<sluice::StateCopy> copies;
    index.find(sluice::StateKind::parameter, {t, 0, 0, tensor.rows(), tensor.columns(), 0, tensor.columns()}, copies);
    for (const sluice::StateCopy& copy : copies) {
      const sluice::StoredUnit& unit = manifest->files[copy.file].units[copy.unit];
      SLUICE_CHECK(copy.from + (copy.rows - 1) * copy.from_stride + copy.columns <= unit.numel, "outside of its unit");
    }
  }
  const auto again = sluice::parse_manifest(sluice::manifest_text(*manifest));
  SLUICE_CHECK(again.ok() && *again == *manifest, "written, it is another one");
  return 0;
}
