// The worlds of tictactoe/evolution/world.cpp outside the engine, as sanitizers like it.
//
// tictactoe SHARED ROWS: SHARED is a file with what the worlds read. Three members of each world
// meet outputs at random for ROWS rows; says what their rows were worth, and how many were idle.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "eggroll_world.h"

extern "C" const eggroll_world states, vine, games;

int main(int count, char** words) {
  if (count != 3) return 2;
  std::ifstream file(words[1], std::ios::binary);
  std::vector<char> shared((std::istreambuf_iterator<char>(file)), {});
  int rows = std::stoi(words[2]);
  for (const eggroll_world* world : {&states, &vine, &games}) {
    for (uint64_t member = 0; member < 3; ++member) {
      std::vector<uint64_t> mine(static_cast<size_t>(world->bytes + 7) / 8);
      uint64_t outputs = 12345 + member;
      long idle = 0, sum = 0;
      world->begin(shared.data(), mine.data(), member * 0x123456789ABCDEFu);
      for (int row = 0; row < rows; ++row) {
        std::vector<int8_t> inputs(static_cast<size_t>(world->inputs));
        std::vector<int8_t> output(static_cast<size_t>(world->outputs));
        for (int8_t& y : output) {
          outputs = outputs * 6364136223846793005u + 1442695040888963407u;
          y = static_cast<int8_t>(outputs >> 56);
        }
        int32_t flag = world->observe(shared.data(), mine.data(), row, inputs.data());
        for (int8_t x : inputs) sum += flag ? x : 0;
        if (flag) world->act(shared.data(), mine.data(), row, output.data());
        idle += flag == EGGROLL_IDLE;
      }
      std::vector<int32_t> values(static_cast<size_t>(rows));
      world->value(shared.data(), mine.data(), rows, values.data());
      long worth = 0;
      for (int row = 0; row < rows; ++row)
        worth += (row % 7 + 1) * values[static_cast<size_t>(row)];
      std::printf("%ld %ld %ld\n", worth, idle, sum);
    }
  }
}
