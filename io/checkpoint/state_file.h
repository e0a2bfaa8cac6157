// The HDF5 file of a rank's states: structure, which HDF5 writes, around bytes, which it does not.
//
// Every unit is a group, every state in it a contiguous dataset whose place is known and reserved before anything is
// written there: so the engine's own queue writes and reads the states around the page cache, and h5py reads the same
// file. docs/checkpoint.md says what is in it.
#pragma once

#include <string>

#include "io/checkpoint/manifest.h"

namespace sluice {

/// Makes the file directory/file.name with all its structure, and room for the states, which read as anything; fills
/// in where they lie, and what the structure's checksum is. `manifest` has no files yet. bad_request where there is no
/// room, fault where writing fails.
Status create_state_file(const std::string& directory, const Manifest& manifest, StoredFile& file);

/// XXH3 of the file's bytes that are not of a state. fault when they can not be read.
Result<std::uint64_t> structure_sum(int fd, const std::string& path, const StoredFile& file);

/// Whether HDF5 sees in the file just what the manifest says: the same datasets, at the same places, of the same types,
/// and nothing else: no links, no other files, no filters, no chunks. The structure must have its checksum, since
/// libraries of HDF5 are not made for files that somebody has damaged. bad_request, naming the dataset.
Status check_state_file(const std::string& path, const Manifest& manifest, const StoredFile& file);

/// model.h5: every tensor of the checkpoint as a virtual dataset over the files beside it. To look at: HDF5 reads zeros
/// where a file is missing or damaged, so nothing of ours ever reads it. 8-bit moments are left out.
Status create_master(const std::string& directory, const Manifest& manifest);

}  // namespace sluice
