// wgmma: products of a whole warpgroup (4 consecutive warps, the first one's number divisible by 4), d += a x
// b or d = a x b. a: [64, 16], in shared memory through a descriptor or in registers; b: [16, n] in shared
// memory. 16-bit elements, fp32 sums: register 4 * j + i of a thread holds row 16 * (warp % 4) + lane / 4 (+
// 8 for i >= 2), column 8 * j + 2 * (lane % 4) + i % 2. Register i of an `a` in registers holds columns 2 *
// (lane % 4) + 8 * (i / 2) and the one behind it, of row 16 * (warp % 4) + lane / 4 + 8 * (i % 2): sums of 16
// columns, narrowed in pairs, are the `a` of a product with 16 rows of b.
#pragma once

#include <cstdint>

namespace mkernel::kernels::ptx {

/// What the two operands are made of, and how one lies in shared memory: rows of k, or rows of m or n.
enum class WgmmaElement { kBf16, kF16 };
enum class WgmmaMajor { kK = 0, kMn = 1 };

/// Descriptor of an operand under the 128-byte swizzle at a 1024-byte aligned shared address (plus the offset
/// of a step along k inside it). Bytes between: kK: `stride` groups of 8 rows, `leading` unused; kMn:
/// `stride` groups of 8 k, `leading` blocks of 64 elements along m or n.
__device__ __forceinline__ std::uint64_t wgmma_descriptor_swizzle128(std::uint32_t shared,
                                                                     std::uint32_t leading,
                                                                     std::uint32_t stride) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
  return kSwizzle128 | static_cast<std::uint64_t>(stride >> 4) << 32 |
         static_cast<std::uint64_t>(leading >> 4) << 16 | ((shared & 0x3ffffU) >> 4);
}

/// Before the first wgmma of a group that touches registers or shared memory written by ordinary
/// instructions.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit_group() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// Until at most `kPending` groups are in flight; those before have read their operands and written d.
template <int kPending>
__device__ __forceinline__ void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// The compiler sees no dependence between the fence and wait above and the registers of a product: ordinary
/// instructions that read or write `d` stay on their side of this call.
template <int kSums>
__device__ __forceinline__ void wgmma_pin(float (&d)[kSums]) {
#pragma unroll
  for (int i = 0; i < kSums; ++i) asm volatile("" : "+f"(d[i]));
}

// What the functions below are made of; gone at the end of this file.
#define MK_D4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define MK_D8(d, i) MK_D4(d, i), MK_D4(d, i + 4)
#define MK_D16(d, i) MK_D8(d, i), MK_D8(d, i + 8)
#define MK_D32(d, i) MK_D16(d, i), MK_D16(d, i + 16)
#define MK_D64(d, i) MK_D32(d, i), MK_D32(d, i + 32)
#define MK_D80(d, i) MK_D64(d, i), MK_D16(d, i + 64)
#define MK_D96(d, i) MK_D64(d, i), MK_D32(d, i + 64)
#define MK_D128(d, i) MK_D64(d, i), MK_D64(d, i + 64)
#define MK_LIST8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define MK_LIST16 MK_LIST8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define MK_LIST32 MK_LIST16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define MK_LIST64                                                                              \
  MK_LIST32                                                                                    \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49" \
  ", %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define MK_LIST80 MK_LIST64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define MK_LIST96 MK_LIST80 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define MK_LIST128                                                                               \
  MK_LIST96                                                                                      \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define MK_WGMMA(shape, type, list, a, b, accumulate, majors)                                               \
  "{\n.reg .pred p;\nsetp.ne.b32 p, " accumulate                                                            \
  ", 0;\n"                                                                                                  \
  "wgmma.mma_async.sync.aligned." shape ".f32." type "." type " {" list "}, " a ", " b ", p, 1, 1, " majors \
  ";\n}"
// One function: n, registers of d, and the numbers of the operands after d.
#define MK_WGMMA_FUNCTION(n, sums, a_at, b_at, accumulate_at, major_a_at, major_b_at)                   \
  template <WgmmaElement kElement, WgmmaMajor kMajorB, WgmmaMajor kMajorA = WgmmaMajor::kK>             \
  __device__ __forceinline__ void wgmma_m64n##n##k16(float(&d)[sums], std::uint64_t a, std::uint64_t b, \
                                                     bool accumulate) {                                 \
    if constexpr (kElement == WgmmaElement::kBf16) {                                                    \
      asm volatile(MK_WGMMA("m64n" #n "k16", "bf16", MK_LIST##sums, a_at, b_at, accumulate_at,          \
                            major_a_at ", " major_b_at)                                                 \
                   : MK_D##sums(d, 0)                                                                   \
                   : "l"(a), "l"(b), "r"(static_cast<std::uint32_t>(accumulate)),                       \
                     "n"(static_cast<int>(kMajorA)), "n"(static_cast<int>(kMajorB)));                   \
    } else {                                                                                            \
      asm volatile(MK_WGMMA("m64n" #n "k16", "f16", MK_LIST##sums, a_at, b_at, accumulate_at,           \
                            major_a_at ", " major_b_at)                                                 \
                   : MK_D##sums(d, 0)                                                                   \
                   : "l"(a), "l"(b), "r"(static_cast<std::uint32_t>(accumulate)),                       \
                     "n"(static_cast<int>(kMajorA)), "n"(static_cast<int>(kMajorB)));                   \
    }                                                                                                   \
  }

// The same with a in registers, which must stay as they are until the product is done.
#define MK_WGMMA_REGISTERS(n, sums, a_, b_, accumulate_, major_)                                   \
  template <WgmmaElement kElement, WgmmaMajor kMajorB>                                             \
  __device__ __forceinline__ void wgmma_m64n##n##k16(float(&d)[sums], const std::uint32_t(&a)[4],  \
                                                     std::uint64_t b, bool accumulate) {           \
    if constexpr (kElement == WgmmaElement::kBf16) {                                               \
      asm volatile(MK_WGMMA("m64n" #n "k16", "bf16", MK_LIST##sums, a_, b_, accumulate_, major_)   \
                   : MK_D##sums(d, 0)                                                              \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                           \
                     "r"(static_cast<std::uint32_t>(accumulate)), "n"(static_cast<int>(kMajorB))); \
    } else {                                                                                       \
      asm volatile(MK_WGMMA("m64n" #n "k16", "f16", MK_LIST##sums, a_, b_, accumulate_, major_)    \
                   : MK_D##sums(d, 0)                                                              \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                           \
                     "r"(static_cast<std::uint32_t>(accumulate)), "n"(static_cast<int>(kMajorB))); \
    }                                                                                              \
  }

// wgmma_m64n<n>k16<element, major of b, major of a>(d, a, b, accumulate): d (+)= a x b; `accumulate` false
// overwrites d.
MK_WGMMA_FUNCTION(16, 8, "%8", "%9", "%10", "%11", "%12")
MK_WGMMA_FUNCTION(32, 16, "%16", "%17", "%18", "%19", "%20")
MK_WGMMA_FUNCTION(64, 32, "%32", "%33", "%34", "%35", "%36")
MK_WGMMA_FUNCTION(128, 64, "%64", "%65", "%66", "%67", "%68")
MK_WGMMA_FUNCTION(160, 80, "%80", "%81", "%82", "%83", "%84")
MK_WGMMA_FUNCTION(192, 96, "%96", "%97", "%98", "%99", "%100")
MK_WGMMA_FUNCTION(256, 128, "%128", "%129", "%130", "%131", "%132")
MK_WGMMA_REGISTERS(64, 32, "{%32, %33, %34, %35}", "%36", "%37", "%38")
MK_WGMMA_REGISTERS(128, 64, "{%64, %65, %66, %67}", "%68", "%69", "%70")

#undef MK_WGMMA_REGISTERS
#undef MK_WGMMA_FUNCTION
#undef MK_WGMMA
#undef MK_LIST128
#undef MK_LIST96
#undef MK_LIST80
#undef MK_LIST64
#undef MK_LIST32
#undef MK_LIST16
#undef MK_LIST8
#undef MK_D128
#undef MK_D96
#undef MK_D80
#undef MK_D64
#undef MK_D32
#undef MK_D16
#undef MK_D8
#undef MK_D4

}  // namespace mkernel::kernels::ptx
