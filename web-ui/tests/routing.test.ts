import { describe, expect, test } from 'vitest'
import { withQuery } from '../src/api/client'
import { matchPath, pageOf } from '../src/routing/router'

describe('paths', () => {
  test('a pattern names parts', () => expect(matchPath('/runs/:id', '/runs/4f1c')).toEqual({ id: '4f1c' }))
  test('another length does not match', () => expect(matchPath('/runs/:id', '/runs')).toBeNull())
  test('a mistyped escape is no page', () => expect(matchPath('/runs/:id', '/runs/%E0%A4%A')).toBeNull())
  test.each(['a/b', 'a b', '<script>', '50%', 'ä?x=1#y'])('the name %s comes back from its address', name =>
    expect(matchPath('/pipelines/:name', pageOf.pipeline(name))).toEqual({ name }),
  )
})

test('empty values are left out of a query', () =>
  expect(withQuery('/runs', { status: 'failed', text: '', since: null, limit: 50 })).toBe(
    '/runs?status=failed&limit=50',
  ))
