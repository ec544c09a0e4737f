// The body for products of few rows (cuda/gemm/sm90_skinny.cuh): which shapes it is for, and how it cuts
// them. Pure functions.
//
// Such a product takes as long as memory needs to send the weights b. So what counts is how many bytes of b
// are under way at a time: every CTA fills the shared memory that it has with stages of b, and k is split
// over the CTAs of a cluster where there are fewer tiles of columns than multiprocessors.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "kernels/plan/sm90_skinny_tile.h"
#include "kernels/plan/sm90_tile.h"

namespace mkernel::kernels {

/// How a product of few rows is cut: into tiles of all rows x kSkinnyColumns, each computed by a cluster.
struct Sm90SkinnyPlan {
  std::int32_t rows = kSkinnyMostRows;  ///< one of kSkinnyRows, >= m
  std::int32_t split = 1;               ///< CTAs of a cluster: a power of two <= kSkinnyMostSplit
};

/// Seconds from the first load of a product to its last sum.
double estimated_seconds(const GemmShape& shape, const Machine& machine, const Sm90SkinnyPlan& plan);

/// The fastest; nothing when the product has more rows than kSkinnyMostRows. m, n, k >= 1.
std::optional<Sm90SkinnyPlan> plan_sm90_skinny(const GemmShape& shape, const Machine& machine);

/// A product on one GPU alone: by either body.
using Sm90LocalPlan = std::variant<Sm90Plan, Sm90SkinnyPlan>;

/// plan_sm90_skinny() where it has a plan: for so few rows its body was faster in every shape measured.
/// plan_sm90_any_cluster() otherwise.
Sm90LocalPlan plan_sm90_local(const GemmShape& shape, const Machine& machine);

}  // namespace mkernel::kernels
