// The sublayers by kind and element type; src/model/sublayer.h is the door.
#pragma once

#include "src/model/sublayer.h"

namespace sluice {

template <class T>
void embed_forward(const SublayerArgs& args);
template <class T>
void embed_backward(const SublayerArgs& args);
template <class T>
void attention_forward(const SublayerArgs& args);
template <class T>
void attention_backward(const SublayerArgs& args);
template <class T>
void mlp_forward(const SublayerArgs& args);
template <class T>
void mlp_backward(const SublayerArgs& args);
enum class HeadMode : std::uint8_t { train, loss };
template <class T>
void head_chunks(const SublayerArgs& args, HeadMode mode);
template <class T>
void head_last_logits(const SublayerArgs& args);

}  // namespace sluice
