// The proof that ranks reach the end together, and that none overwrites what another may have to go back to.
//
// check() proves each rank's plan by itself: there a collective finishes when it has started. Here ranks run side by
// side, and a collective finishes when all members of its group have started it. Two properties are the world's own:
// that everything finishes, with the same collectives met in the same turns, and that a durable slot is written only
// after the commit of every rank that is listed before it: in the iteration before, or, with updates in both passes, in
// the same one.
//
// Why one rank of each stage is enough. Starting or finishing an op only ever enables others, never disables them, so
// what is reached does not depend on the order in which lanes are looked at: the world finishes or stops at one certain
// place. A group is a set of axes, and in each axis but the pipeline's all ranks run alike: their plans differ in which
// part of a buffer is their own, not in ops, lanes, waits or turns, which plan_signature compares. So ranks that differ
// in such an axis alone are always equally far, by induction over that order: the first of them to stand where another
// does not would have had the same waits met and the same partners present. One of them therefore stands for all, and a
// collective among them has met as soon as it has begun. What a rank has heard of the others' commits is told apart by
// the axes in which they differ from it: its twins have heard of theirs what it has of its own. Where several members
// differ in an axis they are looked at for themselves, so that the same proof can be had of two of each, or of all.
//
// Messages between two ranks, as the stages of a pipeline send them, finish when both ends have started: a proof
// without room between them holds with any, and a sender is not taken to know how far its receiver is. Stages run each
// its own program, so that their axis is looked at whole.
//
// NCCL promises that collectives end where all ranks issue those of all communicators of their devices in one order,
// and nothing else. So where a device has collectives they are all on one lane of it, which check() looks at, and here
// begin one after the other, each behind the end of the one before on all ranks that it met: what is proven needs no
// two of them to run at once, and an order that differs among ranks is a standstill.
//
// Votes and what happens after an error are not part of it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "offload/plan/finish.h"
#include "sluice/plan.h"

namespace sluice {

/// Two ranks along each axis, or one where the axis has no more: as many topologies, each with the real sizes. Axes
/// whose ranks do not run alike are in `whole`; all of their ranks are there.
std::vector<Topology> small_world(const Topology& topology, AxisSet whole = 0);

/// The members are plans of one kind for ranks of one topology; those of a group that are not among them are taken to
/// run as its members do. Empty if everything finishes and the durable rule holds. Violations name ops of `members[i]`
/// in their text; `first` and `second` are ops of the members at fault.
std::vector<Violation> check_world(std::span<const StepPlan* const> members, std::size_t limit = 8);
std::vector<Violation> check_world(std::span<const StepPlan> members, std::size_t limit = 8);

/// Hash of what all ranks that run alike have in common: kinds of ops, lanes, waits, collectives; not where in a buffer
/// a rank's own part lies, and not its coordinates.
std::uint64_t plan_signature(const StepPlan& plan);

}  // namespace sluice
