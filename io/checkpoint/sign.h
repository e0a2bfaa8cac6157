// Signatures of checkpoints, for who moves them between machines: XXH3 finds damage, and resists nobody who means harm.
//
// SIGNED is a text: "sluice checkpoint signature 1", then a line for each file, "SHA256-TREE  NAME", in the order of
// their names, where the tree is the SHA-256 of the SHA-256 of each 4 MiB of the file. SIGNED.sig is the Ed25519
// signature of that text, 64 bytes. Keys are PEM files as `openssl genpkey -algorithm ed25519` makes them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "io/checkpoint/checkpoint.h"

namespace sluice {

/// Reads all files of a published checkpoint, with a thread for each core, and puts SIGNED and SIGNED.sig beside them.
/// bad_request when the key is no private Ed25519 key. `watch` hears of bytes.
Status sign_checkpoint(const Checkpoint& checkpoint, const std::string& private_key,
                       const std::function<Status(std::uint64_t bytes)>& watch);

/// Whether every file of the checkpoint is what the owner of the key has signed. Ahead of anything else that is read of
/// it but the manifest. bad_request, naming the file, where it is not, or where there is no signature.
Status verify_signature(const Checkpoint& checkpoint, const std::string& public_key,
                        const std::function<Status(std::uint64_t bytes)>& watch);

}  // namespace sluice
