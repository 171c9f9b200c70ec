// What programs of tests/native expect, and how often they were wrong, on any thread.
#pragma once

#include <atomic>
#include <iostream>
#include <string>

inline std::atomic<int> failures{0};

inline void expect(bool ok, const std::string& what) {
  if (ok) return;
  ++failures;
  std::cout << "  differs: " << what << "\n";
}
