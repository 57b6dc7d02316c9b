/* The protocol of worker_lib/src/shm_rounds.h with the bells of shm_bell.h, for spin: RANKS ranks make
 * ROUNDS rounds over two slots each, in every interleaving of their reads and writes, and rank 0 may
 * be killed between any two of them. Claims:
 *  - who reads a slot finds in it what was published for that round (assert);
 *  - nobody sleeps for ever (an end state with a sleeper is invalid): every rank makes all rounds, or,
 *    if one was killed, makes them or gives up;
 *  - nobody gives up as long as all live (assert).
 * Atomics of the program are seq_cst where they matter here, and steps of this model. A futex sleeps
 * while its word is what the sleeper saw.
 *
 * With ONE_SLOT, LATE_SLEEPER or SILENT_DEATH the protocol is broken on purpose: spin must object.
 */
#ifndef RANKS
#define RANKS 3
#endif
#ifndef ROUNDS
#define ROUNDS 3
#endif

#ifdef ONE_SLOT
#define SLOT(rank, round) slot[(rank) * 2]
#else
#define SLOT(rank, round) slot[(rank) * 2 + (round) % 2]
#endif

#define WRITING 255

byte slot[RANKS * 2];     /* the round whose piece lies there, from 1; WRITING in between */
byte published[RANKS];    /* rounds */
byte sleepers[RANKS];
byte bell[RANKS];         /* how often it rang */
bool is_dead[RANKS];      /* State::kDead */
bool has_given_up[RANKS]; /* State::kGaveUp */
bool is_killed;           /* what the kernel knows */
bool is_over[RANKS];

inline ring(other) {
  atomic { sleeps = sleepers[other] > 0 };
  if
  :: sleeps -> bell[other]++
  :: else
  fi
}

inline ring_others() {
  q = 0;
  do
  :: q < RANKS ->
     if
     :: q != me -> ring(q)
     :: else
     fi;
     q++
  :: q == RANKS -> break
  od
}

/* One look at everything, piece by piece as the program does it; a atomic reads one thing. */
inline look_at_rounds() {
  atomic { missing = false; q = 0 };
  do
  :: atomic { q < RANKS -> missing = missing || published[q] <= round; q++ }
  :: q == RANKS -> break
  od
}

inline look() {
  look_at_rounds();
  lost = false;
  if
  :: missing ->
     q = 0;
     do
     :: q < RANKS ->
        atomic { gave_up = has_given_up[q]; was_dead = is_dead[q] };
        atomic { lost = lost || gave_up || (was_dead && published[q] <= round); q++ }
     :: q == RANKS -> break
     od;
     if
     :: lost -> look_at_rounds() /* was it published after all? */
     :: else
     fi
  :: else
  fi
}

proctype Rank(byte me) {
  byte round, q, seen;
  bool missing, lost, sleeps, gave_up, was_dead;
  {
    do
    :: round < ROUNDS ->
       SLOT(me, round) = WRITING;
       SLOT(me, round) = round + 1;
       published[me] = round + 1;
       ring_others();

#ifndef LATE_SLEEPER
       sleepers[me]++;
#endif
       do
       :: seen = bell[me];
          look();
          if
          :: !missing || lost -> break
          :: else
          fi;
#ifdef LATE_SLEEPER
          sleepers[me]++;
#endif
          bell[me] != seen;
#ifdef LATE_SLEEPER
          sleepers[me]--;
#endif
       od;
#ifndef LATE_SLEEPER
       sleepers[me]--;
#endif
       if
       :: missing ->
          assert(is_killed);
          has_given_up[me] = true;
          ring_others();
          break
       :: else
       fi;

       q = 0;
       do
       :: atomic { q < RANKS -> assert(SLOT(q, round) == round + 1); q++ }
       :: q == RANKS -> break
       od;
       atomic { round++; missing = false; lost = false; seen = 0; q = 0 }
    :: round == ROUNDS -> break
    od
  } unless {
    me == 0 && is_killed
  };
  is_over[me] = true
}

/* The kernel, and in every other process the thread that watches. */
proctype Killer() {
end:
  if
  :: !is_over[0] -> is_killed = true
  :: true
  fi
}

proctype Watcher(byte me) {
end:
  is_killed;
  is_dead[0] = true;
#ifndef SILENT_DEATH
  bell[me]++
#endif
}

init {
  byte rank;
  atomic {
    do
    :: rank < RANKS ->
       run Rank(rank);
       if
       :: rank > 0 -> run Watcher(rank)
       :: else
       fi;
       rank++
    :: else -> break
    od;
#ifdef WITH_DEATH
    run Killer()
#endif
  }
}
