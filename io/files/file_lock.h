// Locks of files that killed processes may still hold for a moment.
#pragma once

namespace sluice {

/// Take the file for this process alone (flock). The kernel takes a killed run's rings apart, which hold its files and
/// may still write to them, a little after the run itself is gone: so this waits, up to five seconds:
/// on a busy machine it takes more than one.
bool lock_patiently(int fd);

}  // namespace sluice
