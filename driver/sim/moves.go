package sim

import (
	"context"
	"fmt"
	"io"

	"pando.run/pando"
)

// Expect announces a move to an agent.
func (p *Peers) Expect(ctx context.Context, h pando.Host, m pando.Move) error {
	a, err := p.agent(h)
	if err != nil {
		return err
	}
	return a.Expect(ctx, m)
}

// Depart asks an agent to send an instance.
func (p *Peers) Depart(ctx context.Context, h pando.Host, m pando.Move) (pando.Arrival, error) {
	a, err := p.agent(h)
	if err != nil {
		return pando.Arrival{}, err
	}
	return a.Depart(ctx, m)
}

// Carry sends a program to an agent.
func (p *Peers) Carry(
	ctx context.Context, h pando.Host, id string, program io.Reader,
) (pando.Arrival, error) {
	a, err := p.agent(h)
	if err != nil {
		return pando.Arrival{}, err
	}
	return a.Carry(ctx, p.Own, id, program)
}

// Landed waits for an agent that takes a program over.
func (p *Peers) Landed(ctx context.Context, h pando.Host, id string) (pando.MoveStatus, error) {
	a, err := p.agent(h)
	if err != nil {
		return pando.MoveStatus{}, err
	}
	return a.Landed(ctx, id)
}

// Hand sends packets to an agent.
func (p *Peers) Hand(ctx context.Context, h pando.Host, id string, packets [][]byte) error {
	a, err := p.agent(h)
	if err != nil {
		return err
	}
	return a.Hand(ctx, p.Own, id, packets)
}

// GiveUp ends a move to the host of an agent.
func (p *Peers) GiveUp(ctx context.Context, h pando.Host, id string) error {
	a, err := p.agent(h)
	if err != nil {
		return err
	}
	return a.GiveUp(ctx, id)
}

// Moving asks an agent about a move from its host.
func (p *Peers) Moving(ctx context.Context, h pando.Host, id string) (bool, error) {
	a, err := p.agent(h)
	if err != nil {
		return false, err
	}
	return a.Moving(ctx, id)
}

// stays is the part of a simulated sandbox that would move.
type stays struct{}

// Leave refuses: a simulated program has no memory.
func (stays) Leave(context.Context, io.Writer, func() error) error {
	return fmt.Errorf("%w: a simulated program has no memory", pando.ErrUnsupported)
}

// Packets returns none.
func (stays) Packets() [][]byte { return nil }

// Deliver drops packets: a simulated program has none.
func (stays) Deliver([][]byte) error { return nil }

// Arriving reports that the program belongs to its host.
func (stays) Arriving() (pando.MoveMark, bool) { return pando.MoveMark{}, false }
