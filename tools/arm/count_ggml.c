/* One product of ROWS rows of 4,096 weights with one column by ggml's `vec_dot` of a type, TIMES times, for an emulator
 * that counts instructions: count_ggml TYPE ROWS TIMES. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void vec_dot(int, float *, size_t, const void *, size_t, const void *, size_t, int);
#define TYPES(T)                                                                                                      \
  T(q8_0, q8_0, 34, 32) T(q4_0, q8_0, 18, 32) T(q5_0, q8_0, 22, 32) T(iq4_nl, q8_0, 18, 32) T(q2_K, q8_K, 84, 256)    \
  T(q3_K, q8_K, 110, 256) T(q4_K, q8_K, 144, 256) T(q5_K, q8_K, 176, 256) T(q6_K, q8_K, 210, 256)                     \
  T(iq2_xxs, q8_K, 66, 256) T(iq2_xs, q8_K, 74, 256) T(iq2_s, q8_K, 82, 256) T(iq3_xxs, q8_K, 98, 256)                \
  T(iq3_s, q8_K, 110, 256) T(iq1_s, q8_K, 50, 256) T(iq1_m, q8_K, 56, 256) T(iq4_xs, q8_K, 136, 256)
#define DECLARE(t, y, b, v) vec_dot ggml_vec_dot_##t##_##y;
#define ENTRY(t, y, b, v) {#t, ggml_vec_dot_##t##_##y, b, v},
TYPES(DECLARE)

static const struct {
  const char *name;
  vec_dot *dot;
  size_t bytes, values;
} types[] = {TYPES(ENTRY)};

/* What ggml's file wants of the rest of its library; never reached. */
float ggml_table_f32_f16[1 << 16];
void ggml_abort(const char *file, int line, const char *text, ...) {
  (void)file, (void)line, (void)text;
  abort();
}

int main(int argc, char **argv) {
  const int k = 4096;
  if (argc != 4) return 2;
  int rows = atoi(argv[2]), times = atoi(argv[3]);
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    if (strcmp(types[i].name, argv[1])) continue;
    size_t row = k / types[i].values * types[i].bytes;
    uint8_t *w = malloc(row * rows), *x = malloc(2 * k);
    if (!w || !x) return 2;
    for (size_t j = 0; j < row * rows; j++) w[j] = (uint32_t)j * 2654435761u >> 13;
    for (size_t j = 0; j < 2 * (size_t)k; j++) x[j] = (uint32_t)j * 2654435761u >> 13;
    float sum = 0, y = 0;
    for (int t = 0; t < times; t++)
      for (int r = 0; r < rows; r++) {
        types[i].dot(k, &y, 0, w + r * row, 0, x, 0, 1);
        sum += y;
      }
    return sum == 12345.0f;
  }
  return 3;
}
