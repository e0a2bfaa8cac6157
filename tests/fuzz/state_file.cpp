// A rank's HDF5 file of a checkpoint that somebody has changed, with checksums that are right: refused in one line, or
// just what the manifest says. The input is a list of changes, of three bytes each: where (16 bits), in the structure,
// and what is added there.
#include "io/checkpoint/state_file.h"

#include <vector>

#include "tests/fuzz/input.h"

namespace {

using namespace sluice;  // NOLINT(google-build-using-namespace)

/// One of two units, with all states.
struct Original {
  Manifest manifest;
  StoredFile file;
  std::vector<std::uint8_t> bytes;
  std::vector<std::size_t> structure;  ///< places of what is not of a state

  explicit Original(const fuzz::Folder& folder) {
    constexpr std::uint64_t numel = 4096;
    manifest.tensors = {{"a", {64, 64}}, {"b", {64, 64}}};
    manifest.model = R"({"model_type":"llama"})";
    manifest.run = "{}";
    file.name = "rank-00000.h5";
    for (std::uint32_t t = 0; t < 2; ++t) {
      StoredUnit unit;
      unit.name = t == 0 ? "L0.attention" : "L0.mlp";
      unit.numel = numel;
      unit.pieces = {{t, 0, 0, 64, 64, 0, 64}};
      for (std::size_t s = 0; s < 2; ++s) {
        StoredState state;
        state.kind = s == 0 ? StateKind::parameter : StateKind::exp_avg;
        state.bytes = stored_bytes(manifest.formats, state.kind, numel);
        state.block_bytes = 4096;
        unit.states.push_back(state);
      }
      file.units.push_back(unit);
    }
    const Status made = create_state_file(folder.path(), manifest, file);
    SLUICE_CHECK(made.ok(), "(%s)", made.error().message.c_str());
    const std::string path = folder.path() + "/" + file.name;
    bytes.resize(std::filesystem::file_size(path));
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    SLUICE_CHECK(pread(fd, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()), "read");
    close(fd);
    for (std::size_t at = 0; at < bytes.size(); ++at) {
      bool is_states = false;
      for (const StoredUnit& unit : file.units)
        for (const StoredState& s : unit.states) is_states |= at >= s.offset && at < s.offset + s.bytes;
      if (!is_states) structure.push_back(at);
    }
  }
};

}  // namespace

/// Where it gives up a damaged file the library forgets some memory.
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5\n"; }
extern "C" const char* __lsan_default_options() { return "print_suppressions=0"; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  static const Original original(folder);
  std::vector<std::uint8_t> bytes = original.bytes;
  for (std::size_t at = 0; at + 3 <= size; at += 3) {
    const std::size_t place = (data[at] | static_cast<std::size_t>(data[at + 1]) << 8) % original.structure.size();
    bytes[original.structure[place]] = static_cast<std::uint8_t>(bytes[original.structure[place]] + data[at + 2]);
  }
  const Status checked = check_state_file(folder.write("changed.h5", bytes), original.manifest, original.file);
  SLUICE_CHECK(checked.ok() || bytes != original.bytes, "(%s)", checked.error().message.c_str());
  if (!checked.ok()) fuzz::check_refusal(checked.error());
  return 0;
}
