#include "io/checkpoint/state_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "io/checkpoint/hdf5.h"
#include "io/checksum.h"
#include "io/files/json_guard.h"
#include "io/files/os_error.h"
#include "io/weights/read_ahead.h"

namespace sluice {
namespace {

constexpr hsize_t metadata_block_bytes = 64u << 10;  // so that structure lies together

H5Handle type_of(const StoredFormats& formats, StateKind kind) {
  if (kind == StateKind::remainder) return {H5Tcopy(H5T_STD_I16LE), H5Tclose};
  const bool moment = kind == StateKind::exp_avg || kind == StateKind::exp_avg_sq;
  if (moment && formats.moments == MomentFormat::int8) return {H5Tcopy(H5T_STD_U8LE), H5Tclose};
  const bool half = moment ? formats.moments == MomentFormat::bf16 : formats.parameters == Dtype::bf16;
  return half ? h5_bf16() : H5Handle{H5Tcopy(H5T_IEEE_F32LE), H5Tclose};
}

/// As text: fixed length, so that nothing lies in a heap.
bool put_text(hid_t object, const char* name, const std::string& text) {
  const H5Handle type{H5Tcopy(H5T_C_S1), H5Tclose}, space{H5Screate(H5S_SCALAR), H5Sclose};
  if (H5Tset_size(type.id(), std::max<std::size_t>(text.size(), 1)) < 0 ||
      H5Tset_strpad(type.id(), H5T_STR_NULLPAD) < 0 || H5Tset_cset(type.id(), H5T_CSET_UTF8) < 0)
    return false;
  const H5Handle attribute{H5Acreate2(object, name, type.id(), space.id(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose};
  return attribute.ok() && H5Awrite(attribute.id(), type.id(), text.empty() ? "" : text.data()) >= 0;
}

bool put_number(hid_t object, const char* name, std::uint64_t value) {
  const H5Handle space{H5Screate(H5S_SCALAR), H5Sclose};
  const H5Handle attribute{H5Acreate2(object, name, H5T_STD_U64LE, space.id(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose};
  return attribute.ok() && H5Awrite(attribute.id(), H5T_NATIVE_UINT64, &value) >= 0;
}

/// A row of the attribute that says which elements are of which tensor.
struct PieceRow {
  std::uint64_t row, column, rows, columns, at, stride;
};
constexpr std::array<const char*, 6> piece_fields{"row", "column", "rows", "columns", "at", "stride"};

bool put_pieces(hid_t group, const std::vector<StoredTensor>& tensors, const StoredUnit& unit) {
  std::size_t name_bytes = 1, shape_bytes = 1;
  const auto shape_text = [](const StoredTensor& t) { return fmt::format("{}", fmt::join(t.shape, "x")); };
  for (const TensorPiece& p : unit.pieces) {
    name_bytes = std::max(name_bytes, tensors[p.tensor].name.size());
    shape_bytes = std::max(shape_bytes, shape_text(tensors[p.tensor]).size());
  }
  const std::size_t row_bytes = name_bytes + shape_bytes + sizeof(PieceRow);
  const H5Handle row{H5Tcreate(H5T_COMPOUND, row_bytes), H5Tclose};
  const H5Handle name{H5Tcopy(H5T_C_S1), H5Tclose}, shape{H5Tcopy(H5T_C_S1), H5Tclose};
  H5Tset_size(name.id(), name_bytes);
  H5Tset_strpad(name.id(), H5T_STR_NULLPAD);
  H5Tset_size(shape.id(), shape_bytes);
  H5Tset_strpad(shape.id(), H5T_STR_NULLPAD);
  H5Tinsert(row.id(), "tensor", 0, name.id());
  H5Tinsert(row.id(), "shape", name_bytes, shape.id());
  for (std::size_t i = 0; i < piece_fields.size(); ++i)
    H5Tinsert(row.id(), piece_fields[i], name_bytes + shape_bytes + i * 8, H5T_STD_U64LE);
  std::vector<char> rows(row_bytes * unit.pieces.size(), 0);
  for (std::size_t i = 0; i < unit.pieces.size(); ++i) {
    const TensorPiece& p = unit.pieces[i];
    const PieceRow numbers{p.row, p.column, p.rows, p.columns, p.at, p.stride};
    const std::string text = shape_text(tensors[p.tensor]);
    char* const at = rows.data() + i * row_bytes;
    std::memcpy(at, tensors[p.tensor].name.data(), tensors[p.tensor].name.size());
    std::memcpy(at + name_bytes, text.data(), text.size());
    std::memcpy(at + name_bytes + shape_bytes, &numbers, sizeof numbers);
  }
  const hsize_t count = unit.pieces.size();
  const H5Handle space{H5Screate_simple(1, &count, nullptr), H5Sclose};
  const H5Handle attribute{H5Acreate2(group, "pieces", row.id(), space.id(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose};
  return attribute.ok() && H5Awrite(attribute.id(), row.id(), rows.data()) >= 0;
}

H5Handle latest_format() {
  H5Handle access{H5Pcreate(H5P_FILE_ACCESS), H5Pclose};
  // Only the latest format has checksums of its own structure.
  H5Pset_libver_bounds(access.id(), H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
  H5Pset_alignment(access.id(), state_alignment_bytes, state_alignment_bytes);
  H5Pset_meta_block_size(access.id(), metadata_block_bytes);
  return access;
}

/// False where the library fails: what it says of why is no help.
bool put_unit(hid_t file, const Manifest& manifest, StoredUnit& unit) {
  const H5Handle timeless{H5Pcreate(H5P_GROUP_CREATE), H5Pclose};
  H5Pset_obj_track_times(timeless.id(), false);  // the same states are the same file
  const H5Handle group{H5Gcreate2(file, unit.name.c_str(), H5P_DEFAULT, timeless.id(), H5P_DEFAULT), H5Gclose};
  if (!group.ok() || !put_number(group.id(), "numel", unit.numel)) return false;
  if (!unit.pieces.empty() && !put_pieces(group.id(), manifest.tensors, unit)) return false;
  const H5Handle layout{H5Pcreate(H5P_DATASET_CREATE), H5Pclose};
  H5Pset_layout(layout.id(), H5D_CONTIGUOUS);
  H5Pset_alloc_time(layout.id(), H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time(layout.id(), H5D_FILL_TIME_NEVER);
  H5Pset_obj_track_times(layout.id(), false);
  for (StoredState& s : unit.states) {
    const H5Handle type = type_of(manifest.formats, s.kind);
    const hsize_t count = s.bytes / H5Tget_size(type.id());
    const H5Handle space{H5Screate_simple(1, &count, nullptr), H5Sclose};
    const H5Handle set{H5Dcreate2(group.id(), state_names[static_cast<std::size_t>(s.kind)], type.id(), space.id(),
                                  H5P_DEFAULT, layout.id(), H5P_DEFAULT),
                       H5Dclose};
    if (!set.ok() || !put_number(set.id(), "block_bytes", s.block_bytes)) return false;
    const haddr_t place = H5Dget_offset(set.id());
    if (place == HADDR_UNDEF) return false;
    s.offset = place;
  }
  return true;
}

bool write_structure(const std::string& path, const Manifest& manifest, StoredFile& file) {
  const auto held = use_hdf5();
  const H5Handle access = latest_format(), creation{H5Pcreate(H5P_FILE_CREATE), H5Pclose};
  H5Pset_obj_track_times(creation.id(), false);
  H5Handle out{H5Fcreate(path.c_str(), H5F_ACC_EXCL, creation.id(), access.id()), H5Fclose};
  if (!out.ok()) return false;
  const StoredFormats& formats = manifest.formats;
  bool good = put_text(out.id(), "format", "sluice checkpoint") && put_number(out.id(), "schema", checkpoint_schema) &&
              put_number(out.id(), "step", manifest.step) && put_text(out.id(), "model", manifest.model) &&
              put_text(out.id(), "parameters", dtype_name(formats.parameters)) &&
              put_text(out.id(), "moments", moment_format_name(formats.moments)) &&
              put_number(out.id(), "moment_group_numel", formats.moment_group_numel);
  for (StoredUnit& unit : file.units) good = good && put_unit(out.id(), manifest, unit);
  return out.close() && good;
}

/// The file's parts that are not of a state.
std::vector<std::pair<std::uint64_t, std::uint64_t>> structure_ranges(const StoredFile& file) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> states, ranges;
  for (const StoredUnit& unit : file.units)
    for (const StoredState& s : unit.states) states.emplace_back(s.offset, s.bytes);
  std::sort(states.begin(), states.end());
  std::uint64_t at = 0;
  for (const auto& [offset, bytes] : states) {
    if (offset > at) ranges.emplace_back(at, offset - at);
    at = offset + bytes;
  }
  if (file.bytes > at) ranges.emplace_back(at, file.bytes - at);
  return ranges;
}

class OpenFile {
 public:
  explicit OpenFile(int fd) : fd_(fd) {}
  ~OpenFile() {
    if (fd_ >= 0) close(fd_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

/// The library keeps no cause. Where the system refused it something, that came last.
Error not_written(const std::string& path) {
  return fault(path + ": HDF5 can not write its structure: " + (errno != 0 ? std::strerror(errno) : "unknown error"));
}

}  // namespace

std::unique_lock<std::mutex> use_hdf5() {
  static std::mutex mutex;
  std::unique_lock<std::mutex> lock(mutex);
  // A file that could not be written stays open in the library, which crashes when it writes it once more as the
  // process ends. All that matters is closed by then.
  static const herr_t stays_silent_at_exit = H5dont_atexit();
  static_cast<void>(stays_silent_at_exit);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);  // it prints what fails otherwise
  return lock;
}

H5Handle h5_bf16() {
  H5Handle type{H5Tcopy(H5T_IEEE_F32LE), H5Tclose};
  H5Tset_fields(type.id(), 15, 7, 8, 0, 7);
  H5Tset_size(type.id(), 2);
  H5Tset_ebias(type.id(), 127);
  return type;
}

Status create_state_file(const std::string& directory, const Manifest& manifest, StoredFile& file) {
  const std::string path = directory + "/" + file.name;
  if (!write_structure(path, manifest, file)) return not_written(path);
  const OpenFile out(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (out.fd() < 0) return os_error("can not open " + path, errno);
  struct stat there {};
  if (fstat(out.fd(), &there) != 0) return fault(path + ": stat failed: " + std::strerror(errno));
  file.bytes = static_cast<std::uint64_t>(there.st_size);
  // What the library reserves is a hole.
  if (const int error = posix_fallocate(out.fd(), 0, there.st_size); error != 0)
    return error == ENOSPC || error == EDQUOT
               ? bad_request(path + ": there is no room for the states: " + std::strerror(error))
               : fault(path + ": fallocate failed: " + std::strerror(error));
  SLUICE_ASSIGN(file.structure, structure_sum(out.fd(), path, file));
  return success();
}

Result<std::uint64_t> structure_sum(int fd, const std::string& path, const StoredFile& file) {
  StreamingChecksum sum;
  std::vector<std::byte> data;
  for (auto [offset, bytes] : structure_ranges(file))
    while (bytes > 0) {
      data.resize(std::min<std::uint64_t>(bytes, 1u << 20));
      SLUICE_TRY(read_exactly(fd, path, offset, data));
      sum.add(data);
      offset += data.size();
      bytes -= data.size();
    }
  return sum.value();
}

namespace {

struct Seen {
  std::string what, wrong;
  const StoredFile* file;
  const Manifest* manifest;
  std::size_t units = 0, states = 0;
  herr_t refuse(const std::string& where, const std::string& why) {
    wrong = where + " " + why;
    return -1;
  }
};

/// Links that are of no other file, and not soft.
bool is_hard(const H5L_info_t* link) { return link->type == H5L_TYPE_HARD; }

herr_t check_set(hid_t group, const char* name, const StoredUnit& unit, Seen& seen) {
  const std::string where = "/" + unit.name + "/" + shown(name);
  const auto expected = std::find_if(unit.states.begin(), unit.states.end(), [&](const StoredState& s) {
    return std::strcmp(name, state_names[static_cast<std::size_t>(s.kind)]) == 0;
  });
  if (expected == unit.states.end()) return seen.refuse(where, "is not in the manifest");
  const H5Handle set{H5Dopen2(group, name, H5P_DEFAULT), H5Dclose};
  if (!set.ok()) return seen.refuse(where, "is no dataset");
  const H5Handle creation{H5Dget_create_plist(set.id()), H5Pclose};
  if (!creation.ok() || H5Pget_layout(creation.id()) != H5D_CONTIGUOUS)
    return seen.refuse(where, "is not contiguous: chunks and views of other datasets are not read");
  if (H5Pget_external_count(creation.id()) != 0) return seen.refuse(where, "lies in another file");
  if (H5Pget_nfilters(creation.id()) != 0) return seen.refuse(where, "has filters");
  const H5Handle space{H5Dget_space(set.id()), H5Sclose}, type{H5Dget_type(set.id()), H5Tclose};
  if (H5Sget_simple_extent_ndims(space.id()) != 1) return seen.refuse(where, "must have one dimension");
  const H5Handle wanted = type_of(seen.manifest->formats, expected->kind);
  if (H5Tequal(type.id(), wanted.id()) <= 0) return seen.refuse(where, "is not of the type that the manifest says");
  const hssize_t count = H5Sget_simple_extent_npoints(space.id());
  if (count < 0 || static_cast<std::uint64_t>(count) != expected->bytes / H5Tget_size(wanted.id()))
    return seen.refuse(where, "does not have the size that the manifest says");
  if (H5Dget_offset(set.id()) != expected->offset) return seen.refuse(where, "lies elsewhere than the manifest says");
  ++seen.states;
  return 0;
}

struct SeenUnit {
  Seen* seen;
  const StoredUnit* unit;
};

herr_t visit_set(hid_t group, const char* name, const H5L_info_t* link, void* data) {
  const auto& [seen, unit] = *static_cast<SeenUnit*>(data);
  if (!is_hard(link)) return seen->refuse("/" + unit->name + "/" + shown(name), "is a link to something else");
  return check_set(group, name, *unit, *seen);
}

herr_t visit_unit(hid_t root, const char* name, const H5L_info_t* link, void* data) {
  Seen& seen = *static_cast<Seen*>(data);
  const std::string where = "/" + shown(name);
  if (!is_hard(link)) return seen.refuse(where, "is a link to something else");
  const auto unit = std::find_if(seen.file->units.begin(), seen.file->units.end(),
                                 [&](const StoredUnit& u) { return u.name == name; });
  if (unit == seen.file->units.end()) return seen.refuse(where, "is not in the manifest");
  const H5Handle group{H5Gopen2(root, name, H5P_DEFAULT), H5Gclose};
  if (!group.ok()) return seen.refuse(where, "is no group");
  ++seen.units;
  SeenUnit in_unit{&seen, &*unit};
  return H5Literate(group.id(), H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, visit_set, &in_unit);
}

}  // namespace

Status check_state_file(const std::string& path, const Manifest& manifest, const StoredFile& file) {
  const auto held = use_hdf5();
  const H5Handle access{H5Pcreate(H5P_FILE_ACCESS), H5Pclose};
  const H5Handle in{H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.id()), H5Fclose};
  if (!in.ok()) return bad_request(path + " is no HDF5 file that can be read");
  std::size_t states = 0;
  for (const StoredUnit& unit : file.units) states += unit.states.size();
  Seen seen{"", "", &file, &manifest, 0, 0};
  const herr_t done = H5Literate(in.id(), H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, visit_unit, &seen);
  if (!seen.wrong.empty()) return bad_request(path + ": " + seen.wrong);
  if (done < 0) return bad_request(path + ": HDF5 can not read its structure");
  if (seen.units != file.units.size() || seen.states != states)
    return bad_request(path + " does not have all states that the manifest names");
  return success();
}

namespace {

/// A rectangle of a tensor, taken as a matrix, that lies in one dataset.
struct View {
  const StoredFile* file;
  const StoredUnit* unit;
  const StoredState* state;
  const TensorPiece* piece;
};

bool put_view(hid_t layout, hid_t whole, const View& view) {
  const TensorPiece& p = *view.piece;
  const hsize_t start[2]{p.row, p.column}, count[2]{p.rows, p.columns};
  const int skipped = 2 - H5Sget_simple_extent_ndims(whole);  // of what has no rows
  if (H5Sselect_hyperslab(whole, H5S_SELECT_SET, start + skipped, nullptr, count + skipped, nullptr) < 0) return false;
  const hsize_t numel = view.unit->numel;
  const H5Handle flat{H5Screate_simple(1, &numel, nullptr), H5Sclose};
  const hsize_t at = p.at, stride = p.rows == 1 ? p.columns : p.stride, rows = p.rows, columns = p.columns;
  const bool dense = stride == columns;  // one block, which the library is quicker with
  const hsize_t one = 1, all = rows * columns;
  if (H5Sselect_hyperslab(flat.id(), H5S_SELECT_SET, &at, dense ? nullptr : &stride, dense ? &one : &rows,
                          dense ? &all : &columns) < 0)
    return false;
  return H5Pset_virtual(layout, whole, view.file->name.c_str(), StoredFile::dataset(*view.unit, *view.state).c_str(),
                        flat.id()) >= 0;
}

bool put_tensor(hid_t file, const Manifest& manifest, std::uint32_t tensor, StateKind kind,
                const std::vector<View>& views) {
  const StoredTensor& t = manifest.tensors[tensor];
  const H5Handle layout{H5Pcreate(H5P_DATASET_CREATE), H5Pclose}, links{H5Pcreate(H5P_LINK_CREATE), H5Pclose};
  H5Pset_create_intermediate_group(links.id(), 1);
  const hsize_t shape[2]{t.rows(), t.columns()};
  const int skipped = t.shape.size() == 1 ? 1 : 0;
  const H5Handle space{H5Screate_simple(2 - skipped, shape + skipped, nullptr), H5Sclose};
  for (const View& view : views)
    if (!put_view(layout.id(), space.id(), view)) return false;
  H5Sselect_all(space.id());
  const H5Handle type = type_of(manifest.formats, kind);
  const std::string name = std::string("/") + state_names[static_cast<std::size_t>(kind)] + "/" + t.name;
  const H5Handle set{H5Dcreate2(file, name.c_str(), type.id(), space.id(), links.id(), layout.id(), H5P_DEFAULT),
                     H5Dclose};
  return set.ok() && put_text(set.id(), "shape", fmt::format("{}", fmt::join(t.shape, "x")));
}

}  // namespace

Status create_master(const std::string& directory, const Manifest& manifest) {
  const std::string path = directory + "/" + master_name;
  const auto held = use_hdf5();
  errno = 0;
  const H5Handle access = latest_format();
  H5Handle out{H5Fcreate(path.c_str(), H5F_ACC_EXCL, H5P_DEFAULT, access.id()), H5Fclose};
  bool good = out.ok() && put_text(out.id(), "format", "sluice checkpoint: views of the files beside it, to look at") &&
              put_number(out.id(), "step", manifest.step) && put_text(out.id(), "model", manifest.model);
  for (std::size_t k = 0; k < state_names.size() && good; ++k) {
    const auto kind = static_cast<StateKind>(k);
    if (kind != StateKind::parameter && kind != StateKind::remainder && manifest.formats.moments == MomentFormat::int8)
      continue;
    std::vector<std::vector<View>> views(manifest.tensors.size());
    for (const StoredFile& file : manifest.files)
      for (const StoredUnit& unit : file.units)
        for (const StoredState& state : unit.states)
          if (state.kind == kind)
            for (const TensorPiece& p : unit.pieces) views[p.tensor].push_back({&file, &unit, &state, &p});
    for (std::uint32_t t = 0; t < views.size() && good; ++t) {
      // Copies are not seen twice.
      const auto key = [](const View& v) { return std::tuple(v.piece->row, v.piece->column); };
      std::stable_sort(views[t].begin(), views[t].end(), [&](const View& a, const View& b) { return key(a) < key(b); });
      views[t].erase(
          std::unique(views[t].begin(), views[t].end(), [&](const View& a, const View& b) { return key(a) == key(b); }),
          views[t].end());
      if (!views[t].empty()) good = put_tensor(out.id(), manifest, t, kind, views[t]);
    }
  }
  if (!out.close() || !good) return not_written(path);
  const OpenFile written(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (written.fd() < 0 || fsync(written.fd()) != 0) return fault(path + ": sync failed: " + std::strerror(errno));
  return success();
}

}  // namespace sluice
