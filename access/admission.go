package access

import (
	"fmt"
	"maps"
	"pando.run/pando"
	"time"
)

// Admissions is the record that every admission of a new host writes, one for the cluster. An
// admission is conditioned on it, so two servers give no slot and no use of a token twice.
type Admissions struct {
	Hosts  int                  `json:"hosts"` // admitted since the birth of the cluster
	Tokens map[string]TokenUses `json:"tokens,omitempty"`
}

// TokenUses counts the uses of one token until its end.
type TokenUses struct {
	Uses  int       `json:"uses"`
	Until time.Time `json:"until"`
}

// TokenUse is one use of a token.
type TokenUse struct {
	Name  string    // of the token, for the count
	Most  int       // uses that it allows
	Until time.Time // its end
	// Before is a count of uses that an earlier build kept in a file of its server. The record
	// replaces it.
	Before int
}

// KindAdmission is the kind of Admissions. Agents do not follow it.
const KindAdmission pando.Kind = "admission"

// AdmissionsKey is the key of the one record of admissions.
const AdmissionsKey = pando.Root + pando.Key(KindAdmission) + "/own"

// tokensMax bounds the used tokens that have not ended. Only root makes tokens.
const tokensMax = 2048

// Key returns the key of the record.
func (Admissions) Key() pando.Key { return AdmissionsKey }

// Use returns the record after one use of a token, without tokens that have ended.
func (a Admissions) Use(t TokenUse, now time.Time) (Admissions, error) {
	a.Tokens = maps.Clone(a.Tokens)
	maps.DeleteFunc(a.Tokens, func(_ string, u TokenUses) bool { return !now.Before(u.Until) })
	uses := max(a.Tokens[t.Name].Uses, t.Before)
	switch {
	case uses >= t.Most:
		return a, fmt.Errorf("%w: the token was used for %d of %d hosts; make a new one with `pando "+
			"token` on a server's host", pando.ErrForbidden, uses, t.Most)
	case uses == 0 && len(a.Tokens) >= tokensMax:
		return a, fmt.Errorf("%w: %d tokens are in use; wait until one of them has ended", pando.ErrNoRoom,
			len(a.Tokens))
	}
	if a.Tokens == nil {
		a.Tokens = map[string]TokenUses{}
	}
	a.Tokens[t.Name] = TokenUses{uses + 1, t.Until}
	return a, nil
}
