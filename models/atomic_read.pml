/* The window of vulnerability of an atomic object read (Daglis et al., "SABRes", MICRO 2016, sections 3.2 and 3.3).
 *
 * An object spans BLOCKS cache blocks; block 0 is its header, with the version. The controller at the destination asks for all
 * blocks at once, and they arrive in any order. From the first request until the header has arrived it does not know which
 * state it reads: the window. A writer makes the version odd, writes the data, and makes the version even again; each of its
 * stores takes the block away from whoever holds it, which the controller hears (an invalidation).
 *
 *   - A data block that arrived inside the window and is taken away inside it aborts the read.
 *   - What changes after the window shows in the version, which is looked at again at the end.
 *
 * The property: a read that is not aborted has one state in all blocks, that of the version it reports.
 *
 *   spin -a atomic_read.pml && cc -O2 -DSAFETY -o pan pan.c && ./pan             no error
 *   spin -DDEAF -a ...       the controller does not hear invalidations: figure 2's race
 *   spin -DSINGLE_LOOK -a ... the version is not looked at again at the end: torn behind the window
 *
 * scripts/check-models runs all three, the first with four blocks too, and demands an error of the last two.
 */

#ifndef BLOCKS
#define BLOCKS 3
#endif
#ifndef WRITES
#define WRITES 2
#endif

byte block[BLOCKS];   /* block[0]: the version; the others: the (even) version of the write that made their content */

bool window;          /* the controller has asked, and the header has not arrived */
bool held[BLOCKS];    /* blocks that arrived inside the window */
bool aborted;

/* A store: at once for everybody, and whoever held the block hears it. */
inline store(number, value) {
	atomic {
		block[number] = value;
		if
		:: window && held[number] -> aborted = true
		:: else
		fi
	}
}

proctype writer() {
	byte write, data, version = 0;
	for (write : 1 .. WRITES) {
		store(0, version + 1);
		for (data : 1 .. BLOCKS - 1) {
			store(data, version + 2)
		}
		version = version + 2;
		store(0, version)
	}
}

proctype controller() {
	byte got[BLOCKS];
	bool arrived[BLOCKS];
	byte next, left = BLOCKS;
	window = true;
	do
	:: left > 0 ->
		select(next : 0 .. BLOCKS - 1);
		if
		:: arrived[next] -> skip
		:: else ->
			atomic {
				got[next] = block[next];
				arrived[next] = true;
				left--;
				if
				:: next == 0 -> window = false
#ifndef DEAF
				:: next != 0 && window -> held[next] = true
#endif
				:: else
				fi
			}
		fi
	:: left == 0 -> break
	od;
#ifndef SINGLE_LOOK
	if
	:: block[0] != got[0] -> aborted = true
	:: else
	fi;
#endif
	if
	:: aborted || got[0] % 2 == 1 -> skip /* Torn: the reader tries again */
	:: else ->
		for (next : 1 .. BLOCKS - 1) {
			assert(got[next] == got[0])
		}
	fi
}

init {
	atomic {
		run writer();
		run controller()
	}
}
