// The byte law: what one training step moves over each link, as a closed form of workload and schedule. It knows
// nothing of ops and buffers, so that a plan can be held against it.
//
// Per unit, S = elements of the shard, e = bytes of a parameter, r = bytes of a remainder, A = groups:
//   fetches     one S*e for every pass that finds the unit's parameters gone; updates publish theirs instead
//               of a second copy between c close ranks, for every pass but the first: P*e/c down and P*e/c*(c - 1) from
//               the others, once P*e/c up, instead
//   optimizer   S*(e + r + 8) each way for states on the drive; fetched tiles that wait for their update are not read
//               again
//               on the device: these and S*e up, and down with S*g of gradient where that is not there, and without S*e
//               where a copy is resident
//   gradient    S*4 up; and S*g each way on the drive where it waits there for the global norm. Of g bytes an element,
//               4, or 2 where gradients are rounded: then none that an update reads is on the device already
//               of steps that keep them for repairs the way to the drive alone
//   accumulator the whole unit's fp32 gradient each way between two groups, where it does not stay on the device; as
//               many as there are partial sums of lots. Where ranks add up after every lot S*4 instead, between two
//               lots
//   collective  what arrives of n ranks in groups of s that share one copy, r = n / s replicas: S*e*(s - 1) for every
//               fetch and every update that is published, S*4*(s - 1) + 2*S*4*(r - 1)/r for every sum of gradients. Of
//               a unit of P parameters that is 2*4*P*(n - 1)/n where s = 1 (all-reduce, ZeRO-0), (4 + e)*P*(n - 1)/n
//               where parameters stay or are held (ZeRO-1 and 2), (4 + 2e)*P*(n - 1)/n where every pass fetches them
//               (ZeRO-3) where processes send gradients as bf16, half of what is reduced
//   host        where ranks meet in host memory: for every gather of parts of B bytes over m members B up and B*(m - 1)
//               down, and for every sum of gradients P*4 up and S*4 down
//   activations what is parked, each way, and once more down where it leaves between forward passes too
//   messages    what arrives of a micro-batch's activations T at each border between stages: T one way, and T of
//               gradients the other; of a tied matrix of V whose head is on another stage than its embedding V*e there
//               once, and V*4 back for every lot. Where ranks meet in host memory the same up on one side and down on
//               the other
//   parts       where sublayers are cut over t ranks, of every micro-batch with A elements in a rank's slice: (3*A*e +
//               2*A*4)*(t - 1) for attention and MLP (what is normed twice, and the gradient; the sum and that of the
//               gradient); A*4 and A*e for the embedding; A*e, A*4 and what is said of each chunk's logits for the
//               head. For every lot of what c ranks have alike of P parameters 2*P*4*(c - 1)/c
//   slices      where c ranks have slices of sequences, of every micro-batch and attention with T tokens a rank, q
//   wide, and
//               k wide keys and values: a = T*(2q + 2k)*e of own heads, as often as the forward pass runs and once
//               more, a*(c - 1)/c. In a ring T*2k*e*(c - 1) as often, and T*2k*4*c
#pragma once

#include <cstdint>

#include "src/schedule/schedule.h"

namespace sluice {

/// Bytes of one step on each kind of link of one rank.
struct LinkBytes {
  std::uint64_t nvme_read = 0, nvme_write = 0, h2d = 0, d2h = 0;
  std::uint64_t collective = 0, message = 0;  ///< received
  bool operator==(const LinkBytes&) const = default;
  LinkBytes& operator+=(const LinkBytes& o) {
    nvme_read += o.nvme_read;
    nvme_write += o.nvme_write;
    h2d += o.h2d;
    d2h += o.d2h;
    collective += o.collective;
    message += o.message;
    return *this;
  }
  LinkBytes operator*(std::uint64_t ranks) const {
    return {nvme_read * ranks, nvme_write * ranks, h2d * ranks, d2h * ranks, collective * ranks, message * ranks};
  }
};

/// Of one iteration of a training plan of the workload's rank.
LinkBytes byte_law(const Workload& workload, const Schedule& schedule);
/// Of all ranks.
LinkBytes byte_law_of_all(const Workload& workload, const Schedule& schedule);

}  // namespace sluice
