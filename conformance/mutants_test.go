package conformance_test

import (
	"context"
	"testing"
	"time"

	"github.com/lockkit/lock/conformance"
)

// No flaws.
const (
	sessions flaw = "grants live as long as their client's session"
	distant  flaw = "every reply takes its time"
)

// The flaws, each with the check that must see it.
const (
	everyoneHolds       flaw = "everyone holds it"
	notStored           flaw = "success without a stored lock"
	racyAcquire         flaw = "looks first, stores then"
	reentrant           flaw = "re-entrant per client"
	plainHeld           flaw = "ErrHeld as a plain error"
	namesAsker          flaw = "the refusal names somebody else"
	futureSince         flaw = "Since in the future"
	countsFromReply     flaw = "counts from the reply"
	countsFromSoonReply flaw = "counts from a reply that comes within the margin"
	pushFromReply       flaw = "a waiter counts from the push"
	renewalFromReply    flaw = "renewal counts from the reply"
	reportsLessTTL      flaw = "keeps less than asked and says so"
	clampsTTL           flaw = "keeps less than asked and does not say so"
	defaultsTTL         flaw = "takes a TTL of zero for a default"
	plainConfigError    flaw = "refuses a TTL without a *ConfigError"
	noExpiry            flaw = "SETNX without an expiry"
	outlivesClose       flaw = "a grant outlives its closed client"
	releasesNothing     flaw = "release does nothing"
	releasesAnyones     flaw = "DEL by a non-owner"
	releasesExpired     flaw = "a late release with all its fields is believed"
	getThenDel          flaw = "GET then DEL"
	statefulRelease     flaw = "release needs State"
	oddRepeat           flaw = "a repeated release fails"
	neverLost           flaw = "a late release says nil"
	forgetsReleases     flaw = "release does not defeat a late request"
	deafToCancel        flaw = "grants under a cancelled context"
	storesCancelled     flaw = "stores a cancelled request"
	worksClosed         flaw = "works after Close"
	panics              flaw = "panics"
	foldsNames          flaw = "names folded to lower case"
	cutsNames           flaw = "names cut at 255 bytes"
	refusesLongNames    flaw = "names of more than 255 bytes refused"
	cleansNames         flaw = "names cleaned like paths"
	unescapedNames      flaw = "names escaped without escaping the escape"
	cStrings            flaw = "names cut at NUL"
	trimsNames          flaw = "names trimmed"
	releasesPrefix      flaw = "release deletes by prefix"
	dropsNote           flaw = "Inspect without the note"
	takesBack           flaw = "renew takes the name back"
	recreates           flaw = "renew recreates a released grant"
	revivesExpired      flaw = "renew revives an expired grant"
	renewsAnyones       flaw = "renew by anyone"
	renewsNothing       flaw = "renew does nothing"
	adds                flaw = "renew adds to the TTL"
	nilNil              flaw = "a cancelled wait returns nil"
	leavesTicket        flaw = "a waiter leaves its queue entry behind"
	sleepsThroughExpiry flaw = "a waiter relies on its push"
	queuesAlways        flaw = "a waiter queues for a free name"
	falseAlarms         flaw = "Watch reports what is not lost"
	watchesForever      flaw = "Watch ignores its context"
	randomToken         flaw = "random token"
	tokenPerClient      flaw = "one token per client"
	tokenPerHold        flaw = "token counter reset when free"
	givesTokenBack      flaw = "a release without a grant gives a token back"
	fallsAfterExpiry    flaw = "token falls after an expiry"
	tokenBeforeGrant    flaw = "token drawn before the grant is won"
	noToken             flaw = "claims Fencing and gives no token"
	tokenOnlyTried      flaw = "a waiter's grant has no token"
	changesToken        flaw = "renew changes the token"
	secretTokens        flaw = "gives tokens and does not claim Fencing"
	forgetsTokens       flaw = "claims Durable and forgets the counter"
	lastComeFirst       flaw = "claims Fair and serves the last first"
	pollsOnly           flaw = "claims Prompt and polls"
)

var mutants = []struct {
	flaw  flaw
	sight []string // checks that must fail
}{
	{everyoneHolds, []string{"basic/held", "basic/one-winner", "basic/contention", "basic/engine-lease", "basic/engine-contention"}},
	{notStored, []string{"basic/stored", "basic/held"}},
	{racyAcquire, []string{"basic/one-winner", "basic/contention"}},
	{reentrant, []string{"basic/not-reentrant"}},
	{plainHeld, []string{"basic/held", "basic/not-reentrant", "basic/refusal"}},
	{namesAsker, []string{"basic/refusal"}},
	{futureSince, []string{"basic/grant"}},
	{countsFromReply, []string{"basic/since"}},
	{countsFromSoonReply, []string{"basic/since"}},
	{pushFromReply, []string{"basic/since"}},
	{renewalFromReply, []string{"basic/since"}},
	{reportsLessTTL, []string{"basic/ttl-kept"}},
	{clampsTTL, []string{"basic/not-early"}},
	{defaultsTTL, []string{"basic/bad-ttl"}},
	{plainConfigError, []string{"basic/bad-ttl"}},
	{noExpiry, []string{"basic/expires", "basic/close-expires", "basic/wait-expiry", "basic/contention-crashes"}},
	{outlivesClose, []string{"basic/close-expires"}},
	{releasesNothing, []string{"basic/release-frees", "basic/wait-release"}},
	{releasesAnyones, []string{"basic/release-foreign", "basic/release-late"}},
	{releasesExpired, []string{"basic/release-late", "basic/release-repeats"}},
	{getThenDel, []string{"basic/release-race"}},
	{statefulRelease, []string{"basic/release-stateless"}},
	{oddRepeat, []string{"basic/release-repeats"}},
	{neverLost, []string{"basic/release-late"}},
	{forgetsReleases, []string{"basic/release-defeats-late-acquire", "basic/release-defeats-own-late-acquire"}},
	{deafToCancel, []string{"basic/cancelled"}},
	{storesCancelled, []string{"basic/cancelled-midway"}},
	{worksClosed, []string{"basic/closed"}},
	{panics, []string{"basic/closed", "basic/close-expires"}},
	{foldsNames, []string{"basic/names-distinct"}},
	{cutsNames, []string{"basic/names-distinct"}},
	{refusesLongNames, []string{"basic/engine-names", "basic/names-distinct"}},
	{cleansNames, []string{"basic/names-distinct"}},
	{unescapedNames, []string{"basic/names-distinct"}},
	{cStrings, []string{"basic/names-distinct"}},
	{trimsNames, []string{"basic/names-distinct"}},
	{releasesPrefix, []string{"basic/names-distinct"}},
	{dropsNote, []string{"basic/inspect"}},
	{takesBack, []string{"basic/renew-late"}},
	{recreates, []string{"basic/renew-released"}},
	{revivesExpired, []string{"basic/renew-expired"}},
	{renewsAnyones, []string{"basic/renew-foreign"}},
	{renewsNothing, []string{"basic/renew-keeps"}},
	{adds, []string{"basic/renew-sets"}},
	{nilNil, []string{"basic/wait-cancelled"}},
	{leavesTicket, []string{"basic/wait-cancelled", "basic/wait-cancelled-next", "basic/engine-wait"}},
	{queuesAlways, []string{"basic/wait-free"}},
	{sleepsThroughExpiry, []string{"basic/wait-expiry"}},
	{falseAlarms, []string{"basic/watch"}},
	{watchesForever, []string{"basic/watch"}},
	{randomToken, []string{"fencing/rises-release", "fencing/contention"}},
	{tokenPerClient, []string{"fencing/rises-release", "fencing/rises-clients"}},
	{tokenPerHold, []string{"fencing/rises-release"}},
	{givesTokenBack, []string{"fencing/rises-abandoned"}},
	{fallsAfterExpiry, []string{"fencing/rises-expiry", "fencing/contention-crashes"}},
	{tokenBeforeGrant, []string{"fencing/contention", "fencing/engine-tokens"}},
	{noToken, []string{"fencing/positive"}},
	{tokenOnlyTried, []string{"fencing/rises-waiters"}},
	{changesToken, []string{"fencing/fixed"}},
	{secretTokens, []string{"fencing/positive", "fencing/contention"}},
	{forgetsTokens, []string{"durable/tokens"}},
	{lastComeFirst, []string{"fair/order"}},
	{pollsOnly, []string{"prompt/wake"}},
}

func toyConfig(s *service) conformance.Config {
	return conformance.Config{Name: "toy", TTL: 300 * time.Millisecond, Slack: 300 * time.Millisecond, Open: s.open, Restart: s.restart}
}

// The mutants are waited for rather than computed, so many run at once whatever
// the number of processors.
func TestEveryMutantIsSeenByTheCheckNamedForIt(t *testing.T) {
	turns := make(chan struct{}, 10)
	verdicts := make([]chan conformance.Result, len(mutants))
	for i, m := range mutants {
		verdicts[i] = make(chan conformance.Result, len(m.sight))
		for _, id := range m.sight {
			go func() {
				turns <- struct{}{}
				verdicts[i] <- verifyOne(t.Context(), m.flaw, id)
				<-turns
			}()
		}
	}
	for i, m := range mutants {
		t.Run(string(m.flaw), func(t *testing.T) {
			for range m.sight {
				mustHaveFailed(t, <-verdicts[i])
			}
		})
	}
}

func verifyOne(ctx context.Context, f flaw, id string) conformance.Result {
	c := toyConfig(newService(f))
	c.Only = func(one string) bool { return one == id }
	if results := conformance.Verify(ctx, c); len(results) == 1 {
		return results[0]
	}
	return conformance.Result{ID: id, Why: "there is no such check"}
}

func mustHaveFailed(t *testing.T, res conformance.Result) {
	t.Helper()
	if res.Status != conformance.Failed {
		t.Errorf("%s %s: %s", res.ID, res.Status, res.Why)
		return
	}
	t.Logf("%s, after %v: %s", res.ID, res.Took.Round(time.Millisecond), res.Why)
}

func TestTheFlawlessToyPassesEveryCheck(t *testing.T) {
	for _, res := range conformance.Verify(t.Context(), toyConfig(newService(""))) {
		if res.Status != conformance.Passed {
			t.Errorf("%s %s: %s", res.ID, res.Status, res.Why)
		}
	}
}

// As with ZooKeeper, a grant of which the service hears nothing is kept while it
// hears of the client.
func TestGrantsThatHangOnASessionAreCheckedBySilence(t *testing.T) {
	c := toyConfig(newService(sessions))
	c.Silence = silence
	for _, res := range conformance.Verify(t.Context(), c) {
		if res.Status != conformance.Passed {
			t.Errorf("%s %s: %s", res.ID, res.Status, res.Why)
		}
	}
}

func TestAHolderThatCountsFromBeforeASlowReplyPasses(t *testing.T) {
	if res := verifyOne(t.Context(), distant, "basic/since"); res.Status != conformance.Passed {
		t.Errorf("%s %s: %s", res.ID, res.Status, res.Why)
	}
}

func TestEveryCheckHasAMutant(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range mutants {
		for _, id := range m.sight {
			seen[id] = true
		}
	}
	for _, check := range conformance.Checks() {
		if !seen[check.ID] {
			t.Errorf("no mutant shows that %s sees anything", check.ID)
		}
	}
}
