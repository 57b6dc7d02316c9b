// How ThreadSanitizer is to look at programs that link LibTorch, which is not built with it: a mutex
// that is locked on our side of one of its inline functions and unlocked on the other looks as if it
// were never unlocked, so neither the order of locks nor their use can be judged. Races are.
extern "C" const char* __tsan_default_options();

extern "C" const char* __tsan_default_options() { return "report_mutex_bugs=0:detect_deadlocks=0"; }
