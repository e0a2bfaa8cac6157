// Checkpoints on the drive: what is written is read, what is damaged is not, and what fails leaves what was.
#include "io/checkpoint/checkpoint.h"

#include <fcntl.h>

#include <map>
#include <set>

#include "io/checkpoint/block_reader.h"
#include "io/checkpoint/copy.h"
#include "io/checkpoint/hdf5.h"
#include "io/checkpoint/pieces.h"
#include "io/checkpoint/state_file.h"
#include "io/checkpoint/state_writer.h"
#include "io/checkpoint/verify.h"
#include "support.h"
#include "tests/exhaustive.h"
#include "tests/system_calls/system_calls.h"

/// HDF5 forgets some memory of files that it could not read or write.
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5\n"; }
extern "C" const char* __lsan_default_options() { return "print_suppressions=0"; }

namespace sluice {
namespace {

using test::SystemCall;
using test::SystemCalls;

/// Two tensors in three files: a matrix cut into columns, of which the second half lies in two files, and a vector that
/// two files have. The elements are their numbers.
class CheckpointFiles : public ::testing::Test {
 protected:
  static constexpr std::uint64_t rows = 96, columns = 160, vector_numel = 300;

  Manifest manifest(std::uint64_t step = 7) const {
    Manifest m;
    m.step = step;
    m.tensors = {{"matrix.weight", {rows, columns}}, {"norm.weight", {vector_numel}}};
    m.model = R"({"model_type":"llama"})";
    m.run = R"({"writer":"a test"})";
    return m;
  }
  /// Flat: the left half of the matrix and then the vector, 7,980 elements; of the right half 4,096 and the rest.
  std::vector<StoredFile> files() const {
    const TensorPiece left{0, 0, 0, rows, 80, 0, 80}, right{0, 0, 80, rows, 80, 0, 80};
    const TensorPiece all{1, 0, 0, 1, vector_numel, 7680, vector_numel};
    std::vector<StoredFile> files(3);
    files[0].name = "rank-00000.h5";
    files[1].name = "rank-00001.h5";
    files[2].name = "rank-00002.h5";
    const auto states = [](std::uint64_t numel) {
      std::vector<StoredState> list;
      for (const StateKind kind : {StateKind::parameter, StateKind::exp_avg, StateKind::exp_avg_sq})
        list.push_back({kind, 0, numel * 4, 8192, 0});
      return list;
    };
    files[0].units = {{"L0.part0", 8192, {left, all}, states(8192)}};
    StoredUnit second{"L0.part1", 4096, {}, states(4096)}, third = second;
    clip_piece(right, 0, 4096, second.pieces);
    clip_piece(right, 4096, 4096, third.pieces);
    clip_piece(all, 4096, 4096, third.pieces);
    files[1].units = {second};
    files[2].units = {third};
    return files;
  }
  static float value(StateKind kind, std::uint32_t tensor, std::uint64_t element) {
    return static_cast<float>(element + 100'000 * tensor) + 1'000'000 * static_cast<float>(kind);
  }
  /// What a unit's flat buffer has.
  std::vector<float> content(const StoredUnit& unit, StateKind kind) const {
    std::vector<float> flat(unit.numel, 0.0f);
    for (const TensorPiece& p : unit.pieces)
      for (std::uint64_t r = 0; r < p.rows; ++r)
        for (std::uint64_t c = 0; c < p.columns; ++c)
          flat[p.at + r * p.stride + c] =
              value(kind, p.tensor, (p.row + r) * (p.tensor == 0 ? columns : vector_numel) + p.column + c);
    return flat;
  }

  Result<StoredFile> write(const std::string& directory, const Manifest& m, const StoredFile& file,
                           const QueueOptions& queue = {}) {
    SLUICE_ASSIGN(const auto writer, StateWriter::create(directory, m, file, queue));
    for (std::size_t u = 0; u < file.units.size(); ++u)
      for (std::size_t s = 0; s < file.units[u].states.size(); ++s) {
        const std::vector<float> flat = content(file.units[u], file.units[u].states[s].kind);
        const AlignedBytes memory(flat.size() * 4);
        std::memcpy(memory.data(), flat.data(), flat.size() * 4);
        StateTransfer transfer;
        SLUICE_TRY(writer->start(u, s, 0, memory.span(), transfer));
        const Status written = writer->finish(transfer);
        SLUICE_TRY(written);
      }
    return writer->close();
  }
  Status save(std::uint64_t step = 7, const QueueOptions& queue = {}) {
    Manifest m = manifest(step);
    SLUICE_ASSIGN(NewCheckpoint made, NewCheckpoint::create(parent_, step));
    for (const StoredFile& file : files()) {
      SLUICE_ASSIGN(StoredFile stored, write(made.directory(), m, file, queue));
      m.files.push_back(std::move(stored));
    }
    return made.publish(m);
  }
  Status verify(const std::string& path) {
    SLUICE_ASSIGN(Checkpoint opened, Checkpoint::open(path));
    return verify_checkpoint(opened, {}, [](std::uint64_t) { return success(); });
  }
  /// Writes the manifest anew, with what the file's structure is now.
  void reseal(std::size_t file) {
    const std::string path = parent_ + "/step-7/";
    auto opened = Checkpoint::open(path);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    Manifest m = opened->manifest();
    m.files[file].bytes = std::filesystem::file_size(path + m.files[file].name);
    const int fd = ::open((path + m.files[file].name).c_str(), O_RDONLY);
    const auto sum = structure_sum(fd, path, m.files[file]);
    ::close(fd);
    ASSERT_TRUE(sum.ok());
    m.files[file].structure = *sum;
    write_text(path + manifest_name, manifest_text(m));
  }
  std::vector<std::string> names(const std::string& directory) const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }

  ScratchDir scratch_;
  std::string parent_ = scratch_.path() + "/checkpoints";
};

TEST_F(CheckpointFiles, AreReadAsTheyWereWritten) {
  ASSERT_TRUE(save().ok());
  EXPECT_EQ(names(parent_), (std::vector<std::string>{"LATEST", "step-7"}));
  EXPECT_EQ(names(parent_ + "/step-7"),
            (std::vector<std::string>{"manifest.json", "model.h5", "rank-00000.h5", "rank-00000.sums", "rank-00001.h5",
                                      "rank-00001.sums", "rank-00002.h5", "rank-00002.sums"}));
  for (const std::string& path : {parent_, parent_ + "/step-7", parent_ + "/step-7/"}) {
    auto opened = Checkpoint::open(path);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    const Manifest& m = opened->manifest();
    EXPECT_EQ(m.step, 7u);
    const auto again = parse_manifest(manifest_text(m));
    ASSERT_TRUE(again.ok()) << again.error().message;
    EXPECT_EQ(*again, m);
    const Status whole = verify_checkpoint(*opened, {}, [](std::uint64_t) { return success(); });
    EXPECT_TRUE(whole.ok()) << whole.error().message;
  }
}

/// Whatever rectangle is asked for, of whatever stride.
TEST_F(CheckpointFiles, AnyRectangleIsFound) {
  ASSERT_TRUE(save().ok());
  auto opened = Checkpoint::open(parent_);
  ASSERT_TRUE(opened.ok());
  const Manifest& m = opened->manifest();
  const PieceIndex index(m);
  std::map<std::pair<std::uint32_t, StateKind>, std::vector<float>> flat;
  for (std::uint32_t f = 0; f < 3; ++f)
    for (const StoredState& s : m.files[f].units[0].states) flat[{f, s.kind}] = content(m.files[f].units[0], s.kind);
  std::mt19937_64 random(1);
  const auto below = [&](std::uint64_t n) { return random() % n; };
  for (int turn = 0; turn < 2000; ++turn) {
    const bool matrix = turn % 4 != 0;
    const std::uint64_t all_rows = matrix ? rows : 1, all_columns = matrix ? columns : vector_numel;
    TensorPiece wanted{matrix ? 0u : 1u, below(all_rows), below(all_columns), 0, 0, below(50), 0};
    wanted.rows = 1 + below(all_rows - wanted.row);
    wanted.columns = 1 + below(all_columns - wanted.column);
    wanted.stride = wanted.columns + below(3);
    const StateKind kind = std::array{StateKind::parameter, StateKind::exp_avg, StateKind::exp_avg_sq}[below(3)];
    // And of that what a window has.
    const std::uint64_t first = below(wanted.end()), numel = 1 + below(wanted.end());
    std::vector<TensorPiece> pieces;
    clip_piece(wanted, first, numel, pieces);
    std::vector<StateCopy> copies;
    for (const TensorPiece& piece : pieces) index.find(kind, piece, copies);
    std::vector<float> got(numel, -1.0f), expected(numel, -1.0f);
    for (const StateCopy& c : copies)
      for (std::uint64_t r = 0; r < c.rows; ++r)
        for (std::uint64_t i = 0; i < c.columns; ++i)
          got.at(c.to + r * c.to_stride + i) = flat.at({c.file, kind}).at(c.from + r * c.from_stride + i);
    for (std::uint64_t r = 0; r < wanted.rows; ++r)
      for (std::uint64_t c = 0; c < wanted.columns; ++c) {
        const std::uint64_t at = wanted.at + r * wanted.stride + c;
        if (at >= first && at < first + numel)
          expected[at - first] = value(kind, wanted.tensor, (wanted.row + r) * all_columns + wanted.column + c);
      }
    ASSERT_EQ(got, expected) << turn;
  }
}

TEST_F(CheckpointFiles, OtherToolsSeeWholeTensors) {
  ASSERT_TRUE(save().ok());
  const auto held = use_hdf5();
  const H5Handle file{H5Fopen((parent_ + "/step-7/model.h5").c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose};
  ASSERT_TRUE(file.ok());
  const auto read = [&](const std::string& name, std::vector<hsize_t> shape) {
    const H5Handle set{H5Dopen2(file.id(), name.c_str(), H5P_DEFAULT), H5Dclose};
    EXPECT_TRUE(set.ok()) << name;
    const H5Handle space{H5Dget_space(set.id()), H5Sclose};
    std::vector<hsize_t> there(shape.size());
    EXPECT_EQ(H5Sget_simple_extent_ndims(space.id()), static_cast<int>(shape.size()));
    H5Sget_simple_extent_dims(space.id(), there.data(), nullptr);
    EXPECT_EQ(there, shape) << name;
    std::uint64_t numel = 1;
    for (const hsize_t n : shape) numel *= n;
    std::vector<float> values(numel, -1.0f);
    EXPECT_GE(H5Dread(set.id(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0) << name;
    return values;
  };
  const std::vector<float> matrix = read("/exp_avg/matrix.weight", {rows, columns});
  for (std::uint64_t i = 0; i < matrix.size(); ++i) ASSERT_EQ(matrix[i], value(StateKind::exp_avg, 0, i)) << i;
  const std::vector<float> vector = read("/parameter/norm.weight", {vector_numel});
  for (std::uint64_t i = 0; i < vector.size(); ++i) ASSERT_EQ(vector[i], value(StateKind::parameter, 1, i)) << i;
}

/// Every third bit of the manifest and of the checksums, one of every third byte of the structure, 2,000 of the states,
/// and files that end at any page; with SLUICE_EXHAUSTIVE=1 every bit, every byte, and 10,000.
TEST_F(CheckpointFiles, NothingThatIsDamagedIsTaken) {
  ASSERT_TRUE(save().ok());
  const std::string path = parent_ + "/step-7/";
  const auto taken = [&](const std::string& name, const std::string& text) {
    write_text(path + name, text);
    const Status whole = verify(path);
    if (!whole.ok()) {
      EXPECT_EQ(whole.error().code, ErrorCode::bad_request) << whole.error().message;
      EXPECT_NE(whole.error().message.find(name), std::string::npos) << whole.error().message;
    }
    return whole.ok();
  };
  const std::size_t stride = test::is_exhaustive() ? 1 : 3;
  for (const std::string name : {"manifest.json", "rank-00001.sums"}) {
    const std::string good = read_text(path + name);
    for (std::size_t bit = 0; bit < good.size() * 8; bit += stride) {
      std::string bad = good;
      bad[bit / 8] ^= static_cast<char>(1 << bit % 8);
      // Behind its checksum there are a quote and a brace.
      const bool is_end = name == "manifest.json" && bit / 8 + 4 >= good.size();
      if (!is_end) {
        ASSERT_FALSE(taken(name, bad)) << name << ", bit " << bit;
      }
    }
    ASSERT_TRUE(taken(name, good));
  }
  const std::string name = "rank-00002.h5", good = read_text(path + name);
  auto opened = Checkpoint::open(path);
  ASSERT_TRUE(opened.ok());
  const std::vector<StoredState>& states = opened->manifest().files[2].units[0].states;
  const auto is_structure = [&](std::size_t at) {
    return std::none_of(states.begin(), states.end(),
                        [&](const StoredState& s) { return at >= s.offset && at < s.offset + s.bytes; });
  };
  std::mt19937_64 random(2);
  std::vector<std::size_t> bytes;
  for (std::size_t at = 0; at < good.size(); at += stride)
    if (is_structure(at) && (good[at] != 0 || random() % 16 == 0)) bytes.push_back(at);
  for (int i = 0; i < (test::is_exhaustive() ? 10'000 : 2'000); ++i)
    bytes.push_back(states[random() % 3].offset + random() % states[0].bytes);
  for (const std::size_t at : bytes) {
    std::fstream file(path + name, std::ios::binary | std::ios::in | std::ios::out);
    const auto flip = [&] {
      file.seekp(static_cast<std::streamoff>(at));
      file.put(static_cast<char>(good[at] ^ (1 << at % 8)));
      file.close();
    };
    flip();
    // What was looked at once is not looked at again: states are, every time.
    const Status whole =
        is_structure(at) ? verify(path) : verify_checkpoint(*opened, {}, [](std::uint64_t) { return success(); });
    ASSERT_FALSE(whole.ok()) << at;
    ASSERT_NE(whole.error().message.find(name), std::string::npos) << whole.error().message;
    if (!is_structure(at)) {
      ASSERT_NE(whole.error().message.find("/L0.part1/"), std::string::npos) << whole.error().message;
    }
    file.open(path + name, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(good[at]);
  }
  ASSERT_TRUE(verify(path).ok());
  for (std::size_t size = 0; size < good.size(); size += 4096) {
    std::filesystem::resize_file(path + name, size);
    ASSERT_FALSE(verify(path).ok()) << size;
  }
  ASSERT_TRUE(taken(name, good));
  // Blocks that changed places.
  std::string swapped = good;
  std::swap_ranges(swapped.begin() + static_cast<std::ptrdiff_t>(states[0].offset),
                   swapped.begin() + static_cast<std::ptrdiff_t>(states[0].offset + 8192),
                   swapped.begin() + static_cast<std::ptrdiff_t>(states[0].offset + 8192));
  EXPECT_FALSE(taken(name, swapped));
  ASSERT_TRUE(taken(name, good));
}

TEST_F(CheckpointFiles, FilesOfAnotherStepOrNoneAreRefused) {
  ASSERT_TRUE(save(7).ok());
  ASSERT_TRUE(save(8).ok());
  const std::string seven = parent_ + "/step-7/", eight = parent_ + "/step-8/", name = "rank-00001.h5";
  EXPECT_EQ(read_text(parent_ + "/LATEST"), "step-8\n");
  // The states are the same ones: it is the structure that says of which step a file is.
  std::filesystem::copy_file(eight + name, seven + name, std::filesystem::copy_options::overwrite_existing);
  const Status other = verify(seven);
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.error().message.find(name), std::string::npos) << other.error().message;
  for (const std::string& missing : {name, std::string("rank-00001.sums"), std::string("manifest.json")}) {
    std::filesystem::rename(eight + missing, eight + "elsewhere");
    const Status gone = verify(eight);
    ASSERT_FALSE(gone.ok()) << missing;
    EXPECT_NE(gone.error().message.find(missing), std::string::npos) << gone.error().message;
    std::filesystem::create_symlink("elsewhere", eight + missing);
    const Status link = verify(eight);
    ASSERT_FALSE(link.ok()) << missing;
    EXPECT_NE(link.error().message.find("link"), std::string::npos) << link.error().message;
    std::filesystem::remove(eight + missing);
    std::filesystem::rename(eight + "elsewhere", eight + missing);
  }
  EXPECT_TRUE(verify(eight).ok());
}

/// With all checksums as they should be: what HDF5 would follow to elsewhere, or has another idea of.
TEST_F(CheckpointFiles, ForeignStructureIsRefused) {
  const std::string file = parent_ + "/step-7/rank-00000.h5";
  const auto refused = [&](const std::string& expected, const auto& change) {
    SCOPED_TRACE(expected);
    std::filesystem::remove_all(parent_);
    ASSERT_TRUE(save().ok());
    {
      const auto held = use_hdf5();
      const H5Handle h5{H5Fopen(file.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose};
      ASSERT_TRUE(h5.ok());
      ASSERT_GE(change(h5.id()), 0);
    }
    reseal(0);
    auto opened = Checkpoint::open(parent_);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    const auto looked = opened->file(0);
    ASSERT_FALSE(looked.ok());
    EXPECT_EQ(looked.error().code, ErrorCode::bad_request);
    EXPECT_NE(looked.error().message.find(expected), std::string::npos) << looked.error().message;
  };
  const auto make = [](hid_t group, const char* name, hid_t type, hsize_t count, const auto& prepare) {
    const H5Handle layout{H5Pcreate(H5P_DATASET_CREATE), H5Pclose};
    const H5Handle space{H5Screate_simple(1, &count, nullptr), H5Sclose};
    H5Ldelete(group, name, H5P_DEFAULT);
    prepare(layout.id());
    const H5Handle set{H5Dcreate2(group, name, type, space.id(), H5P_DEFAULT, layout.id(), H5P_DEFAULT), H5Dclose};
    return set.ok() ? 0 : -1;
  };
  constexpr const char* set = "/L0.part0/exp_avg";
  refused("is a link",
          [](hid_t f) { return H5Lcreate_external("/etc/passwd", "/", f, "extra", H5P_DEFAULT, H5P_DEFAULT); });
  refused("is a link",
          [](hid_t f) { return H5Lcreate_soft("/L0.part0/parameter", f, "/L0.part0/more", H5P_DEFAULT, H5P_DEFAULT); });
  refused("is not in the manifest",
          [](hid_t f) { return H5Gclose(H5Gcreate2(f, "L1", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT)); });
  refused("does not have all states", [](hid_t f) { return H5Ldelete(f, set, H5P_DEFAULT); });
  refused("not contiguous", [&](hid_t f) {
    return make(f, set, H5T_IEEE_F32LE, 8192, [](hid_t layout) {
      const hsize_t chunk = 1024;
      H5Pset_chunk(layout, 1, &chunk);
    });
  });
  refused("lies in another file", [&](hid_t f) {
    return make(f, set, H5T_IEEE_F32LE, 8192, [](hid_t layout) { H5Pset_external(layout, "/etc/passwd", 0, 32768); });
  });
  refused("type", [&](hid_t f) { return make(f, set, H5T_STD_I32LE, 8192, [](hid_t) {}); });
  refused("size", [&](hid_t f) { return make(f, set, H5T_IEEE_F32LE, 8191, [](hid_t) {}); });
  refused("lies elsewhere", [&](hid_t f) {
    const int made = make(f, "/L0.part0/new", H5T_IEEE_F32LE, 8192,
                          [](hid_t layout) { H5Pset_alloc_time(layout, H5D_ALLOC_TIME_EARLY); });
    H5Ldelete(f, set, H5P_DEFAULT);
    return made + H5Lmove(f, "/L0.part0/new", f, set, H5P_DEFAULT, H5P_DEFAULT);
  });
}

TEST_F(CheckpointFiles, ManifestsThatNoWriterWouldWriteAreRefused) {
  ASSERT_TRUE(save().ok());
  auto opened = Checkpoint::open(parent_);
  ASSERT_TRUE(opened.ok());
  const auto refused = [&](const std::string& expected, const auto& change) {
    Manifest m = opened->manifest();
    change(m);
    const auto parsed = parse_manifest(manifest_text(m));
    ASSERT_FALSE(parsed.ok()) << expected;
    EXPECT_NE(parsed.error().message.find(expected), std::string::npos) << parsed.error().message;
  };
  refused("name", [](Manifest& m) { m.files[0].name = "../rank.h5"; });
  refused("name", [](Manifest& m) { m.files[0].name = "model.h5"; });
  refused("twice", [](Manifest& m) { m.files[1].name = m.files[0].name; });
  refused("bytes", [](Manifest& m) { m.files[0].units[0].states[0].bytes += 4096; });
  refused("behind its end", [](Manifest& m) { m.files[0].bytes /= 2; });
  refused("lie in each other",
          [](Manifest& m) { m.files[0].units[0].states[1].offset = m.files[0].units[0].states[0].offset; });
  refused("multiple of 4096", [](Manifest& m) { m.files[0].units[0].states[0].offset += 1; });
  refused("block_bytes", [](Manifest& m) { m.files[0].units[0].states[0].block_bytes = 0; });
  refused("too many", [](Manifest& m) { m.tensors[0].shape = {1ull << 33, 1ull << 33}; });
  refused("no elements", [](Manifest& m) { m.tensors[0].shape = {0, 4}; });
  refused("not within", [](Manifest& m) { m.files[0].units[0].pieces[0].rows = rows + 1; });
  refused("not within", [](Manifest& m) { m.files[0].units[0].pieces[0] = {0, 0, 0, 2, 0, 0, 0}; });
  refused("not within", [](Manifest& m) { m.files[0].units[0].pieces[0] = {0, 0, 0, 0, 1, 0, 0}; });
  refused("not within its unit", [](Manifest& m) { m.files[0].units[0].pieces[0].at = 8000; });
  refused("not within its unit", [](Manifest& m) { m.files[0].units[0].pieces[0].stride = 1ull << 47; });
  refused("does not have all of the parameter of matrix.weight",
          [](Manifest& m) { m.files[1].units[0].pieces.pop_back(); });
  refused("in several places", [](Manifest& m) {
    m.files[0].units[0].pieces[0].columns = 81, m.files[0].units[0].pieces[0].stride = 81,
    m.files[0].units[0].pieces.pop_back();
  });
  refused("must not be empty", [](Manifest& m) { m.files[0].units.clear(); });
  refused("must not be empty", [](Manifest& m) { m.files[0].units[0].states.clear(); });
  refused("moments", [](Manifest& m) { m.formats.moment_group_numel = 4096; });
  const std::string text = manifest_text(opened->manifest());
  EXPECT_FALSE(parse_manifest("").ok());
  EXPECT_FALSE(parse_manifest(text.substr(0, text.size() / 2)).ok());
}

/// Whichever write fails, and however: nothing has the name, nothing is left, and the one before is whole.
TEST_F(CheckpointFiles, FaultsLeaveWhatWas) {
  ASSERT_TRUE(save(1).ok());
  for (const int error : {EIO, ENOSPC, EDQUOT})
    for (std::uint64_t n = 1;; ++n) {
      QueueOptions queue;
      queue.faults.emplace();
      queue.faults->fail_target = FaultOptions::Target::write;
      queue.faults->fail_nth = n;
      queue.faults->fail_errno = error;
      const Status saved = save(2, queue);
      if (saved.ok()) {
        EXPECT_EQ(n, 4u) << "each file has three writes";
        std::filesystem::remove_all(parent_ + "/step-2");
        write_text(parent_ + "/LATEST", "step-1\n");
        break;
      }
      EXPECT_EQ(saved.error().code, ErrorCode::fault) << saved.error().message;
      EXPECT_EQ(names(parent_), (std::vector<std::string>{"LATEST", "step-1"}));
      EXPECT_TRUE(verify(parent_).ok());
    }
  QueueOptions bumpy;
  bumpy.faults.emplace();
  bumpy.faults->short_probability = 0.5;
  bumpy.faults->interrupt_probability = 0.5;
  bumpy.faults->hold_max = 4;
  ASSERT_TRUE(save(3, bumpy).ok());
  EXPECT_TRUE(verify(parent_).ok());
  for (const auto fault : {&FaultOptions::lost_write_nth, &FaultOptions::torn_write_nth}) {
    QueueOptions lying;
    lying.faults.emplace();
    (*lying.faults).*fault = 2;
    std::filesystem::remove_all(parent_ + "/step-4");
    ASSERT_TRUE(save(4, lying).ok());
    EXPECT_FALSE(verify(parent_).ok()) << "a drive that lies";
  }
}

/// Whichever call of whichever kind fails, and however, until none does: a save that says it is there is there, and the
/// one before is whole until then. Each call fails with EIO, and every third with the others (each with
/// SLUICE_EXHAUSTIVE=1).
TEST_F(CheckpointFiles, FaultsOfTheSystemLeaveWhatWas) {
  ASSERT_TRUE(save(1).ok());
  for (const std::string call : {"make", "open", "allocate", "write", "fsync", "rename"})
    for (const int error : {EIO, ENOSPC, EDQUOT, EINTR}) {
      std::uint64_t n = 1;
      for (;; n += error == EIO || test::is_exhaustive() ? 1 : 3) {
        SCOPED_TRACE(call + " " + std::to_string(n) + ": " + std::strerror(error));
        std::filesystem::remove_all(parent_ + "/step-2");
        write_text(parent_ + "/LATEST", "step-1\n");
        QueueOptions queue;
        queue.backend = IoBackendKind::threads;  // whose writes are calls too
        Status saved = success();
        bool has_failed = false;
        {
          const SystemCalls calls({.names = {call}, .nth = n, .error = error});
          saved = save(2, queue);
          has_failed = calls.has_failed();
        }
        auto opened = Checkpoint::open(parent_);
        ASSERT_TRUE(opened.ok()) << opened.error().message;
        EXPECT_TRUE(verify(parent_).ok());
        if (saved.ok()) {
          EXPECT_EQ(opened->manifest().step, 2u);
        } else {
          EXPECT_FALSE(saved.error().message.empty());
          EXPECT_EQ(saved.error().message.find('\n'), std::string::npos) << saved.error().message;
          // Another time it goes well, and nothing of the first is left.
          std::filesystem::remove_all(parent_ + "/step-2");
          EXPECT_EQ(names(parent_), (std::vector<std::string>{"LATEST", "step-1"}));
          ASSERT_TRUE(save(2).ok());
          EXPECT_TRUE(verify(parent_).ok());
        }
        EXPECT_EQ(names(parent_), (std::vector<std::string>{"LATEST", "step-1", "step-2"}));
        if (!has_failed) break;
      }
      EXPECT_GT(n, 1u) << call << ": a save makes such calls";
    }
}

/// What has a name is on the drive: the power may go between any two calls. Files before the directory that holds them,
/// that before it has its name, which is on the drive before LATEST has it, and that before an old one goes.
TEST_F(CheckpointFiles, ArePublishedInAnOrderThatPowerCutsDoNotHarm) {
  ASSERT_TRUE(save(1).ok());
  std::vector<SystemCall> made;
  {
    QueueOptions queue;
    queue.backend = IoBackendKind::threads;
    const SystemCalls calls;
    ASSERT_TRUE(save(2, queue).ok());
    ASSERT_TRUE(prune_checkpoints(parent_, 1).ok());
    made = calls.made();
  }
  const std::string parent = std::filesystem::canonical(parent_);
  // What a power cut would take: what was written to these, and the names that these have.
  std::set<std::string> written, named;
  bool has_name = false, is_latest = false, is_pruned = false;
  for (const SystemCall& c : made) {
    SCOPED_TRACE(c.name + " " + c.path + " " + c.to);
    const auto lies_in = [&](const std::string& path) { return path == c.path || path.starts_with(c.path + "/"); };
    if (c.name == "open" || c.name == "make") named.insert(c.path);
    if (c.name == "write") written.insert(c.path);
    if (c.name == "fsync") {
      written.erase(c.path);
      std::erase_if(named, [&](const std::string& path) {
        return std::filesystem::path(path).parent_path() == std::filesystem::path(c.path);
      });
    }
    if (c.name == "unlink" || c.name == "rename") {
      EXPECT_FALSE(c.path.starts_with(parent + "/step-1") && !(is_latest && !named.contains(parent + "/LATEST")))
          << "the new one may not be there yet";
      is_pruned = is_pruned || c.path == parent + "/step-1";
    }
    if (c.name != "rename") continue;
    EXPECT_TRUE(std::ranges::none_of(written, lies_in)) << "it has its name before it has its bytes";
    named.erase(c.path);
    EXPECT_TRUE(std::ranges::none_of(named, lies_in)) << "files in it have no names yet";
    if (c.to == parent + "/step-2") has_name = true;
    if (c.to == parent + "/LATEST") {
      EXPECT_TRUE(has_name && !named.contains(parent + "/step-2"));
      is_latest = true;
    }
    named.insert(c.to);
  }
  EXPECT_TRUE(has_name && is_latest && is_pruned);
  EXPECT_FALSE(named.contains(parent + "/LATEST"));
}

/// Its directory, too, is there for good when a save has ended.
TEST_F(CheckpointFiles, ADirectoryThatIsMadeForThemHasItsNameForGood) {
  parent_ = scratch_.path() + "/a/b/c";
  std::set<std::string> named;
  const SystemCalls calls;
  ASSERT_TRUE(save(1).ok());
  for (const SystemCall& c : calls.made()) {
    if (c.name == "make") named.insert(c.path);
    if (c.name == "fsync")
      std::erase_if(named, [&](const std::string& path) {
        return std::filesystem::path(path).parent_path() == std::filesystem::path(c.path);
      });
  }
  std::erase_if(named, [](const std::string& path) { return path.find(".tmp-") != std::string::npos; });
  EXPECT_TRUE(named.empty()) << *named.begin();
}

TEST_F(CheckpointFiles, AreCopiedToOtherFileSystems) {
  if (access("/dev/shm", W_OK) != 0) GTEST_SKIP() << "there is no /dev/shm";
  ASSERT_TRUE(save().ok());
  const ScratchDir memory("/dev/shm");
  auto from = Checkpoint::open(parent_);
  ASSERT_TRUE(from.ok());
  std::uint64_t bytes = 0;
  const auto copy = copy_checkpoint(*from, memory.path(), {}, [&](std::uint64_t more) {
    bytes += more;
    return success();
  });
  ASSERT_TRUE(copy.ok()) << copy.error().message;
  EXPECT_GT(bytes, from->manifest().state_bytes());
  EXPECT_TRUE(verify(memory.path()).ok());
  EXPECT_FALSE(copy_checkpoint(*from, memory.path(), {}, [](std::uint64_t) { return success(); }).ok());
}

TEST_F(CheckpointFiles, OfAnyStepHaveNamesThatAreRead) {
  for (const std::uint64_t step :
       {std::uint64_t{0}, std::uint64_t{9}, std::uint64_t{12345}, std::uint64_t{123456789}}) {
    ASSERT_TRUE(save(step).ok()) << step;
    std::filesystem::create_directory(parent_ + "/checkpoint");
    EXPECT_TRUE(verify(parent_).ok()) << step;
  }
}

TEST_F(CheckpointFiles, AreListedAndPruned) {
  for (const std::uint64_t step : {5, 20, 100}) ASSERT_TRUE(save(step).ok());
  EXPECT_FALSE(save(20).ok()) << "it is there";
  std::filesystem::create_directory(parent_ + "/step-30");  // of a copy that was cut short
  std::filesystem::create_directory(parent_ + "/step-007");
  auto all = list_checkpoints(parent_);
  ASSERT_TRUE(all.ok());
  ASSERT_EQ(all->size(), 4u);
  EXPECT_TRUE((*all)[3].latest && (*all)[3].step == 100);
  EXPECT_FALSE((*all)[2].is_whole);
  write_text(parent_ + "/LATEST", "step-5\n");
  const auto gone = prune_checkpoints(parent_, 1);
  ASSERT_TRUE(gone.ok());
  EXPECT_EQ(*gone, (std::vector<std::string>{parent_ + "/step-20"}));
  std::filesystem::remove(parent_ + "/LATEST");
  auto opened = Checkpoint::open(parent_);
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(opened->manifest().step, 100u);
}

TEST_F(CheckpointFiles, OfOtherToolsAreNamed) {
  const auto said = [&](const std::string& file) {
    std::filesystem::remove_all(parent_);
    std::filesystem::create_directories(parent_);
    if (!file.empty()) write_text(parent_ + "/" + file, "x");
    const auto opened = Checkpoint::open(parent_);
    EXPECT_FALSE(opened.ok());
    EXPECT_EQ(opened.error().code, ErrorCode::bad_request);
    return opened.ok() ? std::string() : opened.error().message;
  };
  EXPECT_NE(said(".metadata").find("PyTorch"), std::string::npos);
  EXPECT_NE(said("latest").find("DeepSpeed"), std::string::npos);
  EXPECT_NE(said("latest_checkpointed_iteration.txt").find("Megatron"), std::string::npos);
  EXPECT_NE(said("model.safetensors").find("import"), std::string::npos);
  EXPECT_NE(said("").find("holds no checkpoint"), std::string::npos);
  EXPECT_NE(said("LATEST").find("names no checkpoint"), std::string::npos);
  EXPECT_FALSE(Checkpoint::open(parent_ + "/none").ok());
}

}  // namespace
}  // namespace sluice
