/* The protocol of worker_lib/shm/shm_slot_exchange.h with the futexes of shm_futex.h, for spin: RANKS ranks make
 * rounds over two slots each, for ever, in every interleaving of their reads and writes. Claims:
 *  - who reads a slot finds in it what was published for that round, from the end of its wait until it
 *    publishes the next one (assert);
 *  - nobody sleeps for ever (an end state with a sleeper is invalid): rounds go on or, where a rank is
 *    lost, every other one gives up;
 *  - nobody gives up as long as all are there, nor on a round that was complete (assert).
 *
 * What else may happen, at any point:
 *  WITH_DEATH=n     n ranks, whichever, are killed;
 *  WITH_LEAVE       a rank closes the group, in order or from another thread amid a round;
 *  WITH_TIME_LIMIT  a rank that waits reaches its time limit;
 *  WITH_END         a round is the last that all make, after which nobody notifies.
 *
 * Counts are modulo MODULUS as the program's are modulo 2^32: nobody is ever more than a round ahead, so
 * four numbers tell as much as all, and no round is the last. A futex' number is compared only with
 * what its sleeper read last: a bit that says whether it is another. Atomics are seq_cst in the program where
 * it matters here, and steps of this model. A loop over the ranks that looks for what stays so once it is
 * so is one step: as if all were read in the moment that decided it. PIECEWISE relies on nothing of the
 * kind and reads one thing a step.
 *
 * Each of these breaks the protocol on purpose, and spin must object: ONE_SLOT, LATE_SLEEPER,
 * NO_LAST_LOOK, EARLY_NOTIFY, SILENT_DEATH, SILENT_END, HASTY_LOSS, PLAIN_COMPARISON, MODULUS=2.
 */
#ifndef RANKS
#define RANKS 3
#endif
#ifndef MODULUS
#define MODULUS 4
#endif
#define NOBODY 255

#ifdef PIECEWISE
#define AT_ONCE
#else
#define AT_ONCE atomic
#endif

/* wake(): the number, then the system call. Who is killed in between wakes nobody. */
#if defined(PIECEWISE) || defined(WITH_DEATH)
#define WAKING
#else
#define WAKING atomic
#endif

#define NEXT(round) ((round + 1) % MODULUS)

#ifdef ONE_SLOT
#define SLOT(rank, round) slot[(rank) * 2]
#else
#define SLOT(rank, round) slot[(rank) * 2 + (round) % 2]
#endif

#ifdef PLAIN_COMPARISON
#define IS_BEHIND(rank) (published[rank] < round)
#else
#define IS_BEHIND(rank) ((published[rank] + MODULUS - round) % MODULUS >= MODULUS / 2)
#endif

#if RANKS == 2
#define IS_COMPLETE (!IS_BEHIND(0) && !IS_BEHIND(1))
#elif RANKS == 3
#define IS_COMPLETE (!IS_BEHIND(0) && !IS_BEHIND(1) && !IS_BEHIND(2))
#else
#define IS_COMPLETE (!IS_BEHIND(0) && !IS_BEHIND(1) && !IS_BEHIND(2) && !IS_BEHIND(3))
#endif

#define THERE 0
#define LEFT 1
#define DEAD 2
#define GAVE_UP 3

byte slot[RANKS * 2]; /* the round whose piece lies there */
byte published[RANKS];
byte state[RANKS];
bit sleepers[RANKS];
bit was_notified[RANKS];   /* since its sleeper read the futex' number */
bit is_asleep[RANKS];  /* in the kernel */
bit is_killed[RANKS];  /* as the kernel knows */
bit is_somebody_lost;  /* for the claims alone */
byte last = NOBODY;    /* round, once it is known */
byte dying = NOBODY;   /* until its variables are cleared: a step of everybody */

/* q is a rank in turn; 0 before and after each of these. */
inline notify_all(but) {
  do
  :: atomic {
       q == but || !sleepers[q] -> q++;
       if
       :: q == RANKS -> q = 0; break
       :: else
       fi
     }
  :: atomic { q != but && sleepers[q] -> skip };
     WAKING {
       was_notified[q] = sleepers[q] && !is_killed[q]; /* of nobody else's interest */
       atomic {
         is_asleep[q] = 0;
         q++;
         if
         :: q == RANKS -> q = 0; break
         :: else
         fi
       }
     }
  od
}

inline check_slots() {
  do
  :: q < RANKS -> assert(q == me || SLOT(q, round) == round); q++
  :: else -> q = 0; break
  od
}

inline look_at_rounds() {
  AT_ONCE {
    is_missing = 0;
    do
    :: q < RANKS && !is_missing -> atomic { is_missing = IS_BEHIND(q); q++ }
    :: else -> q = 0; break
    od;
    if
    :: !is_missing -> check_slots()
    :: else
    fi
  }
}

inline look_at_states() {
  AT_ONCE {
    is_lost = 0;
    do
    :: q < RANKS ->
       found = state[q];
       atomic {
         is_lost = is_lost || found == GAVE_UP || (found == LEFT && q == me) ||
                   ((found == DEAD || found == LEFT) && IS_BEHIND(q));
         found = 0;
         q++
       }
    :: else -> q = 0; break
    od
  }
}

proctype Rank(byte me) provided (dying == NOBODY || dying + 1 == _pid) {
  byte round, q, found;
  bit is_missing, is_lost, was_complete;
  {
    do
#ifdef WITH_END
    :: round == last -> break
#endif
#ifdef WITH_LEAVE
    :: state[me] == LEFT -> break
#endif
    :: round != last -> SLOT(me, NEXT(round)) = NEXT(round);
#ifdef EARLY_NOTIFY
       notify_all(me);
#endif
       atomic {
         check_slots(); /* of the round before: read until now at the latest */
         round = NEXT(round);
         published[me] = round
       };
#ifndef EARLY_NOTIFY
       notify_all(me);
#endif

       look_at_rounds();
       if
       :: !is_missing
       :: else ->
#ifndef LATE_SLEEPER
          sleepers[me] = 1;
#endif
          do
          :: true ->
#ifndef NO_LAST_LOOK
             was_notified[me] = 0; /* the futex' number is read */
#endif
             look_at_rounds();
             if
             :: !is_missing -> break
             :: else
             fi;
             look_at_states();
             if
             :: is_lost ->
                was_complete = IS_COMPLETE;
#ifndef HASTY_LOSS
                look_at_rounds(); /* was it published after all? */
#endif
                break
             :: else
             fi;
#ifdef LATE_SLEEPER
             sleepers[me] = 1;
#endif
#ifdef NO_LAST_LOOK
             was_notified[me] = 0;
#endif
             if
             :: was_notified[me]
             :: atomic { !was_notified[me] -> is_asleep[me] = 1 };
                !is_asleep[me]
#ifdef WITH_TIME_LIMIT
             :: is_somebody_lost = 1; break
#endif
             fi
          od;
          atomic { sleepers[me] = 0; was_notified[me] = 0 }
       fi;
       if
       :: is_missing ->
          assert(is_somebody_lost && !was_complete);
          atomic {
            if
            :: state[me] == THERE -> state[me] = GAVE_UP
            :: else
            fi
          };
#ifndef SILENT_END
          notify_all(NOBODY);
#endif
          break
       :: else -> is_lost = 0; was_complete = 0
       fi
    od;
end_over:
    false
  } unless {
    atomic {
      dying == me;
      was_notified[me] = 0;
      is_asleep[me] = 0;
      round = 0;
      q = 0;
      found = 0;
      is_missing = 0;
      is_lost = 0;
      was_complete = 0;
      dying = NOBODY
    }
  };
end:
  false
}

/* One of those that may be; not executable where there is none. */
#if RANKS == 2
#define CHOOSE(rank, MAY_BE) if :: MAY_BE(0) -> rank = 0 :: MAY_BE(1) -> rank = 1 fi
#elif RANKS == 3
#define CHOOSE(rank, MAY_BE) if :: MAY_BE(0) -> rank = 0 :: MAY_BE(1) -> rank = 1 :: MAY_BE(2) -> rank = 2 fi
#else
#define CHOOSE(rank, MAY_BE) if :: MAY_BE(0) -> rank = 0 :: MAY_BE(1) -> rank = 1 :: MAY_BE(2) -> rank = 2 :: MAY_BE(3) -> rank = 3 fi
#endif
#define IS_ALIVE(rank) !is_killed[rank]
#define IS_THERE(rank) (!is_killed[rank] && state[rank] == THERE)

#ifdef WITH_DEATH
proctype Killer() provided (dying == NOBODY) {
  byte killed, victim;
end:
  do
  :: atomic {
       killed < WITH_DEATH -> killed++;
       CHOOSE(victim, IS_ALIVE);
       is_somebody_lost = 1;
       is_killed[victim] = 1;
       dying = victim
     }
  od
}

/* In each process the thread that watches the others. */
proctype Watcher(byte me; byte other) provided (dying == NOBODY) {
end_before_it_sees:
  atomic {
    is_killed[other] && !is_killed[me];
    if
    :: state[other] == THERE -> state[other] = DEAD
    :: else
    fi
  };
#ifndef SILENT_DEATH
end_before_it_wakes:
  atomic { !is_killed[me] -> was_notified[me] = sleepers[me]; is_asleep[me] = 0 };
#endif
end:
  false
}
#endif

#ifdef WITH_LEAVE
/* Some thread of some rank. */
proctype Closer() provided (dying == NOBODY) {
  byte me, q;
end_before:
  atomic {
    CHOOSE(me, IS_THERE);
    state[me] = LEFT;
    is_somebody_lost = 1
  };
  {
    notify_all(NOBODY)
  } unless {
    is_killed[me]
  };
end:
  false
}
#endif

#ifdef WITH_END
proctype Ender() provided (dying == NOBODY) {
  byte q;
end:
  atomic {
    last == NOBODY -> last = NEXT(published[0]);
    do
    :: q < RANKS && published[q] == NEXT(published[0]) -> last = NEXT(published[q]); break
    :: q < RANKS && published[q] != NEXT(published[0]) -> q++
    :: q == RANKS -> break
    od
  };
end_after:
  false
}
#endif

init {
  byte rank, other;
  atomic {
    do
    :: rank < RANKS -> run Rank(rank); rank++
    :: else -> rank = 0; break
    od;
#ifdef WITH_DEATH
    do
    :: rank < RANKS ->
       if
       :: other != rank -> run Watcher(rank, other)
       :: else
       fi;
       other++;
       if
       :: other == RANKS -> other = 0; rank++
       :: else
       fi
    :: else -> rank = 0; break
    od;
    run Killer();
#endif
#ifdef WITH_LEAVE
    run Closer();
#endif
#ifdef WITH_END
    run Ender();
#endif
  };
end:
  false
}
