// Products by a warpgroup, four simdgroups together, on Hopper: wgmma reads operands from threadgroup
// memory, in lines of 128 bytes whose eight parts are in another order in each line: part i of line j
// is at place i ^ j % 8. What begins there is at a multiple of 1024 bytes.
#ifndef SOFTMETAL_TARGET_WARPGROUP_H
#define SOFTMETAL_TARGET_WARPGROUP_H

#include <softmetal/vec.h>
#include <target/tiles.h>

namespace softmetal {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
template <class T> constexpr bool has_warpgroup_tiles = has_tensor_tiles<T>;
#else
template <class T> constexpr bool has_warpgroup_tiles = false;
#endif

// 64 rows, 16 a simdgroup: of every 8x8 block a lane holds two neighbours, as in target/tiles.h.
template <unsigned Columns> struct warpgroup_sums {
  float blocks[Columns / 8][4];  // for each eight columns, those of the upper and of the lower eight rows

  SM_INLINE metal::vec<float, 2> pair(unsigned i, unsigned j) const {
    return {blocks[j][2 * i], blocks[j][2 * i + 1]};
  }
  SM_INLINE void set(unsigned i, unsigned j, metal::vec<float, 2> pair) {
    blocks[j][2 * i] = pair.x, blocks[j][2 * i + 1] = pair.y;
  }
};

#define SM_FOUR(j) \
  "+f"(d.blocks[j][0]), "+f"(d.blocks[j][1]), "+f"(d.blocks[j][2]), "+f"(d.blocks[j][3])
#define SM_EIGHT(j)                                                                         \
  SM_FOUR(j), SM_FOUR(j + 1), SM_FOUR(j + 2), SM_FOUR(j + 3), SM_FOUR(j + 4), SM_FOUR(j + 5), \
      SM_FOUR(j + 6), SM_FOUR(j + 7)

template <class T> struct warpgroup {
  // Makes what this thread wrote or copied visible to products after the next barrier.
  static SM_INLINE void publish() { __asm__ volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
  // Before the first product that uses registers which were written otherwise.
  static SM_INLINE void begin() { __asm__ volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
  // Ends a group of products.
  static SM_INLINE void commit() { __asm__ volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
  // Waits until all but the last `Pending` groups of products are done.
  template <int Pending> static SM_INLINE void wait() {
    __asm__ volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(Pending) : "memory");
  }

  // The next address that an operand may begin at.
  static SM_INLINE T* aligned(T* p) { return (T*)((char*)p + (-shared_address(p) & 1023)); }
  // Where an operand is: the bytes from one group of eight lines to the next and, if lines are along
  // the rows or columns, from 64 of those to the next.
  static SM_INLINE sm_u64 operand(const T* at, unsigned lines, unsigned blocks) {
    const sm_u64 swizzled = 1ull << 62;
    return (shared_address(at) & 0x3ffff) >> 4 | (sm_u64)(blocks >> 4) << 16 |
           (sm_u64)(lines >> 4) << 32 | swizzled;
  }
  // Two sums of a row and two of the row eight below, for 16 columns, as an operand.
  SM_INLINE static void round(sm_u32 (&words)[4], metal::vec<float, 2> a, metal::vec<float, 2> b,
                              metal::vec<float, 2> c, metal::vec<float, 2> d) {
    words[0] = rounded_pair<T>(a), words[1] = rounded_pair<T>(b);
    words[2] = rounded_pair<T>(c), words[3] = rounded_pair<T>(d);
  }

  // Starts to add a product with a depth of 16 to the sums, or to zeros unless `Adding`. `across`: the
  // lines of an operand are along its rows, if it is the left one, or columns, instead of the depth.
  // The left one may be in registers.
  template <bool Adding, class Sums>
  static SM_INLINE void multiply_add(Sums& d, sm_u64 a, sm_u64 b, bool left_across,
                                     bool right_across) {
    if (left_across) right_across ? add<Adding, 1, 1>(d, a, b) : add<Adding, 1, 0>(d, a, b);
    else right_across ? add<Adding, 0, 1>(d, a, b) : add<Adding, 0, 0>(d, a, b);
  }
  template <bool Adding, class Sums>
  static SM_INLINE void multiply_add(Sums& d, const sm_u32 (&a)[4], sm_u64 b, bool right_across) {
    right_across ? add<Adding, 1>(d, a, b) : add<Adding, 0>(d, a, b);
  }

 private:
  template <int Adding, int LeftAcross, int RightAcross>
  static SM_INLINE void add(warpgroup_sums<64>& d, sm_u64 a, sm_u64 b) {
    if constexpr (__is_same(T, _Float16))
      __asm__ volatile(
          "{ .reg .pred p; setp.ne.u32 p, %36, 0; "
          "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
          "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
          "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
          "}, %32, %33, p, 1, 1, %34, %35; }"
          : SM_EIGHT(0)
          : "l"(a), "l"(b), "n"(LeftAcross), "n"(RightAcross), "n"(Adding)
            : "memory");
    else
      __asm__ volatile(
          "{ .reg .pred p; setp.ne.u32 p, %36, 0; "
          "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
          "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
          "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
          "}, %32, %33, p, 1, 1, %34, %35; }"
          : SM_EIGHT(0)
          : "l"(a), "l"(b), "n"(LeftAcross), "n"(RightAcross), "n"(Adding)
            : "memory");
  }
  template <int Adding, int LeftAcross, int RightAcross>
  static SM_INLINE void add(warpgroup_sums<128>& d, sm_u64 a, sm_u64 b) {
    if constexpr (__is_same(T, _Float16))
      __asm__ volatile(
          "{ .reg .pred p; setp.ne.u32 p, %68, 0; "
          "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
          "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
          "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
          "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
          "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
          "}, %64, %65, p, 1, 1, %66, %67; }"
          : SM_EIGHT(0), SM_EIGHT(8)
          : "l"(a), "l"(b), "n"(LeftAcross), "n"(RightAcross), "n"(Adding)
            : "memory");
    else
      __asm__ volatile(
          "{ .reg .pred p; setp.ne.u32 p, %68, 0; "
          "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
          "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
          "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
          "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
          "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
          "}, %64, %65, p, 1, 1, %66, %67; }"
          : SM_EIGHT(0), SM_EIGHT(8)
          : "l"(a), "l"(b), "n"(LeftAcross), "n"(RightAcross), "n"(Adding)
            : "memory");
  }
  template <int Adding, int LeftAcross, int RightAcross>
  static SM_INLINE void add(warpgroup_sums<256>& d, sm_u64 a, sm_u64 b) {
    if constexpr (__is_same(T, _Float16))
      __asm__ volatile(
          "{ .reg .pred p; setp.ne.u32 p, %132, 0; "
          "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
          "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
          "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
          "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
          "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
          "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
          "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
          "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
          "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
          "}, %128, %129, p, 1, 1, %130, %131; }"
          : SM_EIGHT(0), SM_EIGHT(8), SM_EIGHT(16), SM_EIGHT(24)
          : "l"(a), "l"(b), "n"(LeftAcross), "n"(RightAcross), "n"(Adding)
            : "memory");
    else
      __asm__ volatile(
          "{ .reg .pred p; setp.ne.u32 p, %132, 0; "
          "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
          "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
          "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
          "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
          "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
          "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
          "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
          "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
          "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
          "}, %128, %129, p, 1, 1, %130, %131; }"
          : SM_EIGHT(0), SM_EIGHT(8), SM_EIGHT(16), SM_EIGHT(24)
          : "l"(a), "l"(b), "n"(LeftAcross), "n"(RightAcross), "n"(Adding)
            : "memory");
  }
  template <int Adding, int RightAcross>
  static SM_INLINE void add(warpgroup_sums<64>& d, const sm_u32 (&a)[4], sm_u64 b) {
    if constexpr (__is_same(T, _Float16))
      __asm__ volatile(
          "{ .reg .pred p; setp.ne.u32 p, %38, 0; "
          "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
          "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
          "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
          "}, {%32,%33,%34,%35}, %36, p, 1, 1, %37; }"
          : SM_EIGHT(0)
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(RightAcross), "n"(Adding)
            : "memory");
    else
      __asm__ volatile(
          "{ .reg .pred p; setp.ne.u32 p, %38, 0; "
          "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
          "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
          "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
          "}, {%32,%33,%34,%35}, %36, p, 1, 1, %37; }"
          : SM_EIGHT(0)
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(RightAcross), "n"(Adding)
            : "memory");
  }
  template <int Adding, int RightAcross>
  static SM_INLINE void add(warpgroup_sums<128>& d, const sm_u32 (&a)[4], sm_u64 b) {
    if constexpr (__is_same(T, _Float16))
      __asm__ volatile(
          "{ .reg .pred p; setp.ne.u32 p, %70, 0; "
          "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
          "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
          "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
          "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
          "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
          "}, {%64,%65,%66,%67}, %68, p, 1, 1, %69; }"
          : SM_EIGHT(0), SM_EIGHT(8)
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(RightAcross), "n"(Adding)
            : "memory");
    else
      __asm__ volatile(
          "{ .reg .pred p; setp.ne.u32 p, %70, 0; "
          "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
          "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
          "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
          "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
          "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
          "}, {%64,%65,%66,%67}, %68, p, 1, 1, %69; }"
          : SM_EIGHT(0), SM_EIGHT(8)
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(RightAcross), "n"(Adding)
            : "memory");
  }
};

#undef SM_EIGHT
#undef SM_FOUR

}  // namespace softmetal

#endif
